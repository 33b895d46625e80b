"""Random regular expressions, and random grammars in EBNF with the expression that means the same."""

from __future__ import annotations

import re
from random import Random

REGEX_ATOMS = (
    *"ab-1.éΩ",
    *(
        r"\d",
        r"\w",
        r"\s",
        r"\S",
        r"\W",
        r"\n",
        r"\.",
        r"\x61",
        r"\^",
        r"\/",
        "[a-c]",
        "[^a]",
        r"[^\n]",
        "[-a]",
    ),
    *(
        r"[\w-]",
        r"[\s\S]",
        r"[\]a]",
        r"[\^a]",
        r"[a\-z]",
        "[.]",
        "(?:a|b)",
        "(a|b1)",
        "(|a)",
        "^",
        "$",
        "(?=a)",
        r"\b",
    ),
)
COUNTS = ("", "", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?", "+?")
LITERALS = {
    "a": "a",
    "ab": "ab",
    r"\n": "\n",
    r"\"": '"',
    r"\\": "\\",
    "é": "é",
    " ": " ",
    r"\x61": "a",
    "]": "]",
}
LITERALS |= {"^": "^", ".": ".", "#": "#", "::=": "::=", "|": "|", "/": "/"}
CLASSES = (
    "[a-c]",
    "[^a]",
    r"[\n]",
    "[-a]",
    r"[\]a]",
    r"[\\a]",
    "[é]",
    r"[^\n]",
    '[ab"]',
    "[0-9a]",
    r"[a\-z]",
)


def random_regex(random: Random) -> str:
    """An expression of a few atoms, some of which not every library knows."""
    atoms = [random.choice(REGEX_ATOMS) + random.choice(COUNTS) for _ in range(random.randint(1, 4))]
    return random.choice(["", "", "^"]) + "".join(atoms) + random.choice(["", "", "$"])


def random_grammar(random: Random) -> tuple[str, str]:
    """A grammar of two rules, and its expression."""
    (first, meant), (second, also_meant) = _sequence(random, 2), _sequence(random, 1)
    return f"root ::= {first} sub-rule\nsub-rule ::= {second} # a note\n", meant + also_meant


def _sequence(random: Random, depth: int) -> tuple[str, str]:
    parts = [_part(random, depth) for _ in range(random.randint(1, 3))]
    counts = [random.choice(["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,1}"]) for _ in parts]
    written = " ".join(part[0] + count for part, count in zip(parts, counts, strict=True))
    return written, "".join(part[1] + count for part, count in zip(parts, counts, strict=True))


def _part(random: Random, depth: int) -> tuple[str, str]:
    kind = random.choice("lllccg" if depth else "llc")
    if kind == "l":
        text = random.choice([*LITERALS])
        return f'"{text}"', f"(?:{re.escape(LITERALS[text])})"
    if kind == "c":
        return (random.choice(CLASSES),) * 2
    either = [_sequence(random, depth - 1) for _ in range(random.randint(1, 3))]
    return f"({' | '.join(each for each, _ in either)})", f"(?:{'|'.join(each for _, each in either)})"

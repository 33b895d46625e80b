"""What is asked, and when: prompts out of a file or a generator, and the times of their arrivals.

Everything follows from the seed. Knows nothing about who answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

MAX_TOKENS_KEYS: Final = ("max_tokens", "output_len")
WORDS: Final = (
    "the",
    "wire",
    "between",
    "an",
    "engine",
    "and",
    "its",
    "backend",
    "carries",
    "tokens",
    "of",
    "text",
)
ROLES: Final = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}


class InvalidDataset(ValueError):
    """The file is no dataset; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request. Its prompt is the one of `text`, `messages` and `token_ids` that is not empty."""

    max_tokens: int
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    token_ids: tuple[int, ...] = ()


def arrivals(count: int, rate: float | None, generator: random.Random) -> list[float]:
    """Seconds after the start: a Poisson process of `rate` per second, or all at once."""
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += generator.expovariate(rate) if rate is not None else 0.0
    return times


def random_token_jobs(
    count: int, input_len: int, max_tokens: int, vocab_size: int, avoided: Collection[int], seed: int
) -> list[Job]:
    """Prompts of random ids, without those that mean something."""
    generator = random.Random(seed)
    ids = [token_id for token_id in range(vocab_size) if token_id not in avoided]
    return [Job(max_tokens, token_ids=tuple(generator.choices(ids, k=input_len))) for _ in range(count)]


def random_word_jobs(count: int, input_len: int, max_tokens: int, seed: int) -> list[Job]:
    """Prompts of random words, for who takes no ids."""
    generator = random.Random(seed)
    return [Job(max_tokens, text=" ".join(generator.choices(WORDS, k=input_len))) for _ in range(count)]


def dataset_jobs(path: Path, count: int, max_tokens: int, seed: int) -> list[Job]:
    """Prompts of a file in an order that the seed draws, again from the start when they are too few.

    Raises InvalidDataset and OSError.
    """
    jobs = [job_of(place, entry, max_tokens) for place, entry in entries(path)]
    if not jobs:
        raise InvalidDataset(f"{path}: no prompts")
    random.Random(seed).shuffle(jobs)
    return list(islice(cycle(jobs), count))


def entries(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each object with its place, out of JSON lines or one JSON list."""
    text = path.read_text(encoding="utf-8")
    try:
        if text.lstrip().startswith("["):
            numbered = [(f"item {number}", entry) for number, entry in enumerate(json.loads(text))]
        else:
            lines = enumerate(text.splitlines(), 1)
            numbered = [(f"line {number}", json.loads(line)) for number, line in lines if line.strip()]
    except (ValueError, RecursionError) as error:
        raise InvalidDataset(f"{path}: not JSON: {error}") from error
    for place, entry in numbered:
        if not isinstance(entry, dict):
            raise InvalidDataset(f"{path}: {place}: not an object")
        yield f"{path}: {place}", entry


def job_of(place: str, entry: Mapping[str, object], max_tokens: int) -> Job:
    """The request in an object. Raises InvalidDataset."""
    limits = [entry[key] for key in MAX_TOKENS_KEYS if key in entry]
    limit = limits[0] if limits else max_tokens
    if type(limit) is not int or limit < 1:
        raise InvalidDataset(f"{place}: max_tokens must be a whole number above 0")
    match entry:
        case {"token_ids": list(ids)} if ids and all(type(each) is int and 0 <= each < 2**32 for each in ids):
            return Job(limit, token_ids=tuple(ids))
        case {"messages": list(messages)} if messages:
            return Job(limit, messages=tuple(turn(place, each, "role", "content") for each in messages))
        case {"conversations": list(turns)} if turns:
            # ShareGPT: the first turn is the prompt, what follows is an answer of somebody else's.
            return Job(limit, messages=(turn(place, turns[0], "from", "value"),))
        case {"prompt": str(text)} if text:
            return Job(limit, text=text)
    raise InvalidDataset(f"{place}: needs one of prompt, messages and token_ids, and not an empty one")


def turn(place: str, entry: object, role_key: str, text_key: str) -> tuple[str, str]:
    """Role and text of a message. Raises InvalidDataset."""
    if isinstance(entry, dict):
        role, text = entry.get(role_key), entry.get(text_key)
        if isinstance(role, str) and role in ROLES and isinstance(text, str) and text:
            return ROLES[role], text
    raise InvalidDataset(f"{place}: a message needs {role_key} and {text_key}")

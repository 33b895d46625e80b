"""The oracle of text beside one that somebody else wrote: the `tokenizers` library."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from enginewire.conformance.client_side.oracle.draw import draw
from enginewire.conformance.client_side.oracle.predict import PROMPT
from enginewire.conformance.client_side.oracle.text import REPLACEMENT, NotTold, Text, decode
from enginewire.conformance.client_side.stage import alphabet
from enginewire.conformance.client_side.stage.alphabet import EOS, TURN, UNKNOWN, ids

TOKENIZERS = {spaced: Tokenizer.from_buffer(alphabet.files(spaced)["tokenizer.json"]) for spaced in (0, 1)}


@pytest.mark.parametrize("spaced", [False, True])
def test_the_text_of_drawn_tokens_is_that_of_the_library(spaced: bool) -> None:
    compared = 0
    for number in range(1, 150):
        case = draw(7, number)
        for tokens in case.tokens:
            whole = [*PROMPT, *case.prompt, *tokens]
            shown = [token for token in whole if token not in (EOS, TURN)] if case.skips else whole
            try:
                text = decode(shown, spaced=spaced)
            except NotTold:
                continue
            library = TOKENIZERS[spaced].decode(whole, skip_special_tokens=case.skips)
            if spaced and REPLACEMENT in library:
                # It takes the whole run of bytes back for a wrong one, which no stream can.
                continue
            assert text.shown + (text.rest or "") == library, case.as_json()
            compared += 1
    assert compared > 150


@pytest.mark.parametrize(
    ("pieces", "spaced", "expected"),
    [
        ((b"\xc3",), False, Text("", REPLACEMENT)),
        ((b"\xc3", b"\xa9"), False, Text("é")),
        ((b"\xf0\x9f\x99",), False, Text("", REPLACEMENT)),
        ((b"\xf0\x9f", "a"), False, Text(f"{REPLACEMENT}a")),
        ((b"\xed\xa0",), False, Text(REPLACEMENT * 2)),
        ((b"\xf4\x8f",), False, Text("", REPLACEMENT)),
        ((b"\xc3", UNKNOWN, b"\xa9"), True, Text("é")),
        ((b"\xc3", "word"), True, Text(f"{REPLACEMENT}word")),
        (("a", b"\xff"), True, Text(f"a{REPLACEMENT}")),
        ((b"\xe6\x97",), True, Text("", None)),
        ((" é", b"\xe6\x97", b"\xa5"), True, Text(" é日")),
        ((), True, Text("")),
    ],
)
def test_what_is_not_complete_waits(
    pieces: tuple[str | bytes | int, ...], spaced: bool, expected: Text
) -> None:
    assert decode(ids(*pieces), spaced=spaced) == expected


@pytest.mark.parametrize("pieces", [(b"\xff", "a"), (b"\xe6\x97", "word"), (b"\xff\xff",)])
def test_the_text_of_several_wrong_bytes_is_not_told(pieces: tuple[str | bytes | int, ...]) -> None:
    with pytest.raises(NotTold):
        decode(ids(*pieces), spaced=True)

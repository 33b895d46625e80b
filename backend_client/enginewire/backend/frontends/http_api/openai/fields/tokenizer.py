"""Fields that only the tokenizer can carry out: which tokens a prompt becomes, and which words are forbidden.

Reading is sans-IO. Knows nothing about the rest of a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import TableKind
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.text_backend import MAX_INLINE_CHARACTERS, TextBackend
from enginewire.backend.prompting.prompts import PromptFit
from enginewire.backend.prompting.tokenizer import BackendTokenizer

MAX_BAD_WORDS: Final = 1024
# vLLM's word for as many tokens as there is room for.
ALL_THERE_IS_ROOM_FOR: Final = -1
SIDES: Final = ("left", "right")


@dataclass(frozen=True, slots=True)
class TokenizerFields:
    """As vLLM has them. `truncate_prompt_tokens` is how many tokens of a prompt stay, None = all of them."""

    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncates_left: bool = True
    bad_words: Sequence[str] = ()
    spaces_between_special_tokens: bool = True


def read_tokenizer_fields(body: Body) -> TokenizerFields:
    """Raises InvalidBody."""
    most = body.integer("truncate_prompt_tokens")
    if most is not None and most < 1 and most != ALL_THERE_IS_ROOM_FOR:
        raise InvalidBody("truncate_prompt_tokens", "must be at least 1, or -1")
    side = body.text("truncation_side") or SIDES[0]
    if side not in SIDES:
        raise InvalidBody("truncation_side", f"must be {' or '.join(SIDES)}")
    return TokenizerFields(
        add_special_tokens=body.get("add_special_tokens") is None or body.flag("add_special_tokens"),
        truncate_prompt_tokens=most,
        truncates_left=side == SIDES[0],
        bad_words=read_bad_words(body),
        # Special tokens that are not shown have nothing between them.
        spaces_between_special_tokens=body.get("spaces_between_special_tokens") is None
        or body.flag("spaces_between_special_tokens")
        or body.get("skip_special_tokens") is not False,
    )


def read_bad_words(body: Body) -> Sequence[str]:
    """Raises InvalidBody."""
    words = body.strings("bad_words")
    if len(words) > MAX_BAD_WORDS:
        raise InvalidBody("bad_words", f"at most {MAX_BAD_WORDS} words")
    for place, word in enumerate(words):
        if not word.strip():
            raise InvalidBody(f"bad_words[{place}]", "must not be empty")
    return words


async def carry_out(
    fields: TokenizerFields, prompts: Sequence[pb.BackendServiceGenerateRequest], backend: TextBackend
) -> PromptFit:
    """Add the forbidden words, and say how the prompts are to be made to fit.

    Raises InvalidBody and RequestFailed.
    """
    if not fields.spaces_between_special_tokens and has_spaces(backend.tokenizer):
        raise InvalidBody("spaces_between_special_tokens", "not supported for this tokenizer; only true is")
    if fields.bad_words:
        sequences = await forbidden(fields.bad_words, backend.tokenizer)
        for prompt in prompts:
            prompt.request.sampling_options.bad_words_token_ids.extend(sequences)
    most = fields.truncate_prompt_tokens
    if most == ALL_THERE_IS_ROOM_FOR:
        most = await _room(prompts[0].request.stop_conditions, backend)
    return PromptFit(fields.add_special_tokens, most, fields.truncates_left)


def has_spaces(tokenizer: BackendTokenizer) -> bool:
    """Whether the decoder may write spaces between tokens that have none; these families never do."""
    return tokenizer.vocabulary.kind not in (TableKind.BYTE_LEVEL, TableKind.BYTE_FALLBACK)


async def forbidden(words: Sequence[str], tokenizer: BackendTokenizer) -> Sequence[pb.TokenSequence]:
    """The tokens of each word, at the beginning of a text and in its middle. Raises InvalidBody."""
    if sum(map(len, words)) <= MAX_INLINE_CHARACTERS:
        return list(_forbidden(words, tokenizer))
    return await asyncio.to_thread(lambda: list(_forbidden(words, tokenizer)))


def _forbidden(words: Sequence[str], tokenizer: BackendTokenizer) -> Iterable[pb.TokenSequence]:
    for place, word in enumerate(words):
        try:
            bare = tokenizer.encode(word.lstrip(), add_special_tokens=False)
            spaced = tokenizer.encode(f" {word.lstrip()}", add_special_tokens=False)
        except ValueError as error:
            raise InvalidBody(f"bad_words[{place}]", str(error)) from error
        yield pb.TokenSequence(token_ids=bare)
        # What ends in the bare word is forbidden with it.
        if spaced[-len(bare) :] != bare:
            yield pb.TokenSequence(token_ids=spaced)


async def _room(stops: pb.StopConditions, backend: TextBackend) -> int | None:
    """How many tokens a prompt may have; None is any number."""
    config = (await backend.backend.engines.info(None)).config
    # At least one token is generated.
    return max(1, config.context_length - max(1, stops.max_tokens)) if config.context_length else None

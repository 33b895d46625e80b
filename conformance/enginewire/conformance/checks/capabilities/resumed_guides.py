"""RES: guided answers that go on: what was handed in is output of the grammar."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.checks.streams.resume import FEWEST, RESUMED
from enginewire.conformance.oracle.languages import LANGUAGES, Language
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import Context
from enginewire.conformance.session.requests import PROMPT_TOKENS
from enginewire.conformance.session.views import detokenizer
from enginewire.conformance.wire.stream import Choice, Stream
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

DIGITS: Final = "[0-9]{2}"
ROOM: Final = 24
"""Tokens that the text of any of these guides has at most."""


@check("RES-01", variant="guided", gate="guided_modes", needs=(*SHAPE, RESUMED, "SEQ-01", "SEQ-02"))
async def guided_goes_on(ctx: Context) -> None:
    """Each guide, cut after each token in turn: two choices from different places, by a call and a stream."""
    room, judged = ctx.tokens(ROOM, PROMPT_TOKENS, least=FEWEST), 0
    for language in _languages(ctx):
        asked = {"guided_decoding": language.guide, "max_tokens": room}
        whole = await ctx.generate(ctx.request(**asked))
        count = len(whole.tokens)
        for cut in sorted({1, count // 2, count - 1}) if count > 1 else ():
            ends = [cut, 1 + cut % (count - 1)][: min(ctx.choices(2), 2)]
            request = ctx.request(**asked, n=len(ends) if len(ends) > 1 else None)
            for index, end in enumerate(ends):
                request.request.resume.choices.add(index=index, generated_token_ids=whole.tokens[:end])
            request.request.resume.attempt = 1
            stream = await ctx.start(request, is_multiplexed=bool(cut % 2)).ok()
            for index, end in enumerate(ends):
                choice = stream.choices.get(index, Choice(index))
                await _goes_on(ctx, language, whole, choice, end)
                judged += 1
    if not judged:
        raise NotApplicable("no guide is advertised whose language the kit knows, or none can be cut")


async def _goes_on(ctx: Context, language: Language, whole: Stream, choice: Choice, cut: int) -> None:
    """As it was; where the arithmetic may round otherwise, with a text that the guide allows."""
    if ctx.capabilities.batch_invariant:
        message = f"a guided request cut after {cut} tokens goes on in another way"
        expect_equal(choice.tokens, whole.tokens[cut:], message)
        message = f"a guided request cut after {cut} tokens ends in another way"
        expect_equal(choice.reason_name, whole.choice.reason_name, message)
        return
    if not ctx.capabilities.tokenizer:
        raise NotApplicable("Capabilities.batch_invariant and Capabilities.tokenizer are not advertised")
    table = await ctx.session.once("tokenizer", lambda: detokenizer.fetch(ctx.session.client()))
    text = table.text([*whole.tokens[:cut], *choice.tokens])
    is_cut = choice.finish_reason == pb.FINISH_REASON_LENGTH
    is_right = language.may_become(text) if is_cut else language.matches(text)
    message = f"the text of a guided request cut after {cut} tokens does not follow its guide"
    expect(is_right, message, expected=language.described, seen=text)


def _languages(ctx: Context) -> list[Language]:
    """Those that are advertised; the shortest pattern is at its end within the fewest tokens."""
    return [
        _short(each) if each.mode == pb.GUIDED_MODE_REGEX else each
        for each in LANGUAGES
        if each.mode in ctx.capabilities.guided_modes
    ]


def _short(language: Language) -> Language:
    return replace(
        language,
        guide=pb.GuidedDecoding(regex=DIGITS),
        described=DIGITS,
        matches=lambda text: bool(re.fullmatch(DIGITS, text)),
        may_become=lambda text: bool(re.fullmatch("[0-9]{0,2}", text)),
    )

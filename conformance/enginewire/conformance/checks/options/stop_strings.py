"""STP-06: an engine that evaluates stop strings cuts its text exactly there."""

from __future__ import annotations

from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.company import MULTIPLEXED
from enginewire.conformance.session.context import Context
from enginewire.conformance.wire.stream import Choice
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal

TOKENS = 24


@check("STP-06", needs=(*SHAPE, "STP-03"), not_beside=(MULTIPLEXED,))
async def stop_strings_are_cut_exactly(ctx: Context) -> None:
    """A string of the greedy text that two tokens share, hidden and shown."""
    prompt, count = ctx.prompt(), ctx.tokens(TOKENS)
    whole = (await ctx.generate(ctx.request(token_ids=prompt, max_tokens=count))).choice
    stop, before = _spanning(whole)
    for is_shown in (False, True):
        stream = await ctx.generate(
            ctx.request(token_ids=prompt, max_tokens=count, stop=[stop], include_stop_str_in_output=is_shown)
        )
        expect_equal(
            stream.choice.reason_name, "STOP", "a stop string over two tokens does not end the choice"
        )
        match = stream.choice.terminal.stop_match.text if stream.choice.terminal else ""
        expect_equal(match, stop, "stop_match does not name the stop string")
        seen, wanted = _text(stream.choice), before + stop * is_shown
        expect_equal(seen, wanted, "the text is not cut where the stop string begins")


def _text(choice: Choice) -> str:
    return "".join(output.text for output in choice.outputs)


def _spanning(choice: Choice) -> tuple[str, str]:
    """A string over a border of tokens that occurs nowhere before, and the text before it."""
    texts = [text for output in choice.outputs for text in output.tokens]
    expect(len(texts) == len(choice.tokens), "LLMEngineOutput.tokens has not one text per token")
    text = "".join(texts)
    expect_equal(_text(choice), text, "the texts of the tokens are not the text")
    for place in range(2, len(texts)):
        stop = texts[place - 1][-2:] + texts[place][:2]
        begin = len("".join(texts[:place])) - len(texts[place - 1][-2:])
        if texts[place - 1] and texts[place] and text.find(stop) == begin:
            return stop, text[:begin]
    raise NotApplicable("no two tokens of the greedy text make a string that is new")

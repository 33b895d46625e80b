"""Checks of a backend in front of engines that send text, whether they evaluate stop strings or not."""

from __future__ import annotations

from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.checks.text import expect_stop
from enginewire.conformance.client_side.context import ClientContext, only_turn
from enginewire.conformance.client_side.stage.alphabet import ids
from enginewire.conformance.client_side.stage.facts import Facts
from enginewire.conformance.client_side.stage.script import DIED, LENGTH, STOP, Say, Step
from enginewire.conformance.wire.violation import expect, expect_equal

OTHER: str = "another text"
"""Not what the tokens say, so that whose text is shown can be seen."""


@client_check("CLI-38")
async def stop_strings_hold_for_an_engine_that_sends_text(ctx: ClientContext) -> None:
    """The engine sends the right text and evaluates nothing, so somebody else has to."""
    scene = ctx.play(Say(["ab"], text="ab"), Say(["STOP"], text="STOP"), Say(["x"], text="x", finish=LENGTH))
    expect_stop(await ctx.start(scene, stop=["STOP"]).ok(), "STOP", 3)


@client_check("CLI-38", "whose-text")
async def text_of_an_engine_without_stop_strings_is_not_shown(ctx: ClientContext) -> None:
    """It could not know which tokens have no text here."""
    scene = ctx.play(Say(["ab"], text=OTHER), Say(["cd"], text=OTHER, finish=LENGTH))
    answer = await ctx.start(scene).ok()
    expect_equal(answer.choice.text, "abcd", "the text is not what the token ids say")


@client_check("CLI-38", "max-tokens")
async def max_tokens_holds_for_an_engine_that_sends_text(ctx: ClientContext) -> None:
    """It overruns."""
    scene = ctx.play(Say(["ab"], text="ab"), Say(["cd"], text="cd"), Say(finish=LENGTH))
    answer = await ctx.start(scene, max_tokens=3).ok()
    seen = (answer.choice.text, answer.choice.tokens, answer.choice.reason)
    expect_equal(seen, ("abc", ids(*"abc"), "LENGTH"), "max_tokens does not hold")


@client_check("CLI-39")
async def an_engine_with_stop_strings_gets_them(ctx: ClientContext) -> None:
    """All fields about text at once."""
    there = await ctx.on(await ctx.backends.shared(Facts(stop_strings=True)))
    scene = there.play(Say(["a"], text="a", finish=LENGTH))
    await there.start(
        scene, stop=["STOP", "END"], skip_special_tokens=False, include_stop_str_in_output=True
    ).ok()
    part = only_turn(scene).part
    expect_equal(
        list(part.stop_conditions.stop), ["STOP", "END"], "the stop strings did not reach the engine"
    )
    options = (
        part.sampling_options.include_stop_str_in_output,
        part.output_options.HasField("skip_special_tokens"),
    )
    expect_equal(options, (True, True), "fields about text did not reach the engine")
    expect_equal(part.output_options.skip_special_tokens, False, "skip_special_tokens was changed")


@client_check("CLI-39", "text")
async def an_engine_with_stop_strings_is_believed(ctx: ClientContext) -> None:
    """Its text and its stop are passed through, where ours would be others."""
    there = await ctx.on(await ctx.backends.shared(Facts(stop_strings=True)))
    scene = there.play(
        Say(["ab"], text=OTHER), Say(["x"], text=""), Say(["cd"], text="!", finish=STOP, stop="STOP")
    )
    answer = await there.start(scene, stop=["STOP", "b"]).ok()
    expect_equal(answer.choice.text, f"{OTHER}!", "the text of the engine was changed")
    expect_stop(answer, "STOP", 5)


@client_check("CLI-30", "engine-text", needs=("CLI-13", "CLI-30"))
async def what_a_lost_engine_withheld_is_not_lost(ctx: ClientContext) -> None:
    """It made the text, and the next one does not know how much of it was shown; a backend may give up."""
    there = await ctx.on(await ctx.backends.shared(Facts(stop_strings=True)))
    script: list[Step] = [Say(["ab"], text="ab"), Say(["S"], text=""), DIED]
    scene = there.play(*script, then=[[Say(["cd"], text="cd", finish=LENGTH)]])
    answer = await there.start(scene, stop=["STOP"]).ended()
    if not answer.failures:
        expect_equal(answer.choice.text, "abScd", "the text is not that of an undisturbed engine")


@client_check("CLI-39", "without-text")
async def an_engine_with_stop_strings_may_send_no_text(ctx: ClientContext) -> None:
    """Then the text is made by the backend, stop strings included."""
    there = await ctx.on(await ctx.backends.shared(Facts(stop_strings=True)))
    scene = there.play(Say(["ab"]), Say(["STOP"]), Say(["x"], finish=LENGTH))
    answer = await there.start(scene, stop=["STOP"]).ok()
    expect_stop(answer, "STOP", 3)
    expect("ab" in answer.choice.text, "there is no text", seen=repr(answer.choice.text))

"""Checks of answers that go on behind a cut: what the next engine is told, and what the caller gets."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.checks.failures import FULL, generated
from enginewire.conformance.client_side.checks.routing import NOTE
from enginewire.conformance.client_side.context import ClientContext, only_turn
from enginewire.conformance.client_side.stage.alphabet import ids
from enginewire.conformance.client_side.stage.script import (
    DIED,
    HANDED_BACK,
    LENGTH,
    Say,
    Step,
    say,
    spoken,
)
from enginewire.conformance.client_side.stage.turn import LIFE, Scene, Turn
from enginewire.conformance.wire.violation import NotApplicable, expect, expect_equal


@client_check("CLI-29")
async def resume_says_what_was_delivered(ctx: ClientContext) -> None:
    """Twice cut: each attempt names all ids so far, and the life of the engine that had them last."""
    scene = ctx.play(say("ab"), DIED, then=[[say("cd"), FULL], [say("ef", finish=LENGTH)]])
    await ctx.start(scene).ended()
    turns = _resumed(scene)
    expect_equal(generated(turns[0]), ids(*"ab"), "resume names other ids than were delivered")
    lives = [turn.part.resume.origin_lifetime_id for turn in turns]
    expect_equal(lives[0], LIFE % 1, "resume names another life of the engine")
    if len(turns) > 1:
        expect_equal(generated(turns[1]), ids(*"abcd"), "resume names other ids than were delivered")
        expect_equal(lives[1], LIFE % 2, "resume names a stale life of the engine")


@client_check("CLI-29", "origin")
async def resume_names_whoever_generated(ctx: ClientContext) -> None:
    """The engine asked second has answered an annotation and gone away, and the third is asked."""
    second: list[Step] = [pb.EngineEvent(event=NOTE), HANDED_BACK]
    scene = ctx.play(say("ab"), DIED, then=[second, [say("cd", finish=LENGTH)]])
    await ctx.start(scene, annotations=[NOTE]).ended()
    for turn in _resumed(scene):
        origin = turn.part.resume.origin_lifetime_id
        expect_equal(origin, LIFE % 1, "resume names the life of an engine that generated nothing")


@client_check("CLI-29", "finished")
async def resume_says_which_choices_have_ended(ctx: ClientContext) -> None:
    """One by the engine, one by a stop string; the third is cut twice."""
    first: list[Step] = [Say("ab", finish=LENGTH), Say("c STOP", index=1), say("d", index=2), DIED]
    scene = ctx.play(*first, then=[[say("e", index=2), FULL], [say("f", index=2, finish=LENGTH)]])
    await ctx.start(scene, n=3, stop=["STOP"]).ended()
    for turn in _resumed(scene):
        ended = sorted(choice.index for choice in turn.part.resume.choices if choice.finished)
        expect_equal(ended, [0, 1], "resume names others as finished")


@client_check("CLI-30")
async def a_stop_string_across_the_cut_is_found(ctx: ClientContext) -> None:
    """Its first half is withheld when the engine is lost; so is half a character before it."""
    first = [say(b"\xc3"), say(b"\xa9 "), *spoken("ST")]
    scene = ctx.play(*first, DIED, then=[[*spoken("OP"), say("late", finish=LENGTH)]])
    answer = await ctx.start(scene, stop=["STOP"]).ended()
    _resumed(scene)
    expect(answer.error is None, "the continued answer failed", seen=answer.described)
    expect_equal(answer.choice.text, "é ", "the text is not that of an undisturbed engine")
    expect_equal(answer.choice.reason, "STOP", "a stop string across the cut is not found")
    expect_equal(answer.choice.end.completion_usage.completion_tokens, 7, "usage counts something else")


@client_check("CLI-30", "twice", needs=("CLI-30",))
async def a_stop_string_across_two_cuts_is_found(ctx: ClientContext) -> None:
    """Each engine has said a part of it."""
    scene = ctx.play(
        *spoken("a S"), DIED, then=[[*spoken("TO"), FULL], [say("P"), say("late", finish=LENGTH)]]
    )
    answer = await ctx.start(scene, stop=["STOP"]).ended()
    if len(_resumed(scene)) < 2:
        raise NotApplicable("this backend goes on once")
    expect(answer.error is None, "the continued answer failed", seen=answer.described)
    expect_equal(answer.choice.text, "a ", "the text is not that of an undisturbed engine")
    expect_equal(answer.choice.reason, "STOP", "a stop string across two cuts is not found")
    expect_equal(answer.choice.end.completion_usage.completion_tokens, 6, "usage counts something else")


@client_check("CLI-30", "logprobs")
async def the_sum_goes_on(ctx: ClientContext) -> None:
    """The engine that goes on can only add to the log-probabilities that it was told; cut twice."""
    second: list[list[Step]] = [[Say(["c"], row=[-1.0]), FULL], [Say(["d"], finish=LENGTH, row=[-1.0])]]
    scene = ctx.play(Say(["ab"], row=[-0.5, -0.25]), DIED, then=second)
    await ctx.start(scene, logprobs=0).ended()
    turns = _resumed(scene)
    seen = [choice.cum_log_probs for turn in turns for choice in turn.part.resume.choices]
    expected = [-0.75, -1.75][: len(turns)]
    expect_equal(seen, expected, "resume names another sum of the log-probabilities so far")


def _resumed(scene: Scene) -> list[Turn]:
    """The attempts that continue the first one; a backend may as well report the failure."""
    turns = [turn for turn in scene.turns[1:] if turn.part.HasField("resume")]
    if not turns:
        raise NotApplicable("this backend does not resume")
    return turns


@client_check("CLI-30", "of-the-caller", needs=("CLI-06", "CLI-13", "CLI-17", "CLI-30", "CLI-34"))
async def an_answer_goes_on_behind_the_callers_resume(ctx: ClientContext) -> None:
    """Half a character, then half a stop string, are in the tokens that the caller hands in."""
    await _expect_joined(ctx, ids("a", b"\xc3"), (say(b"\xa9"), say("!", finish=LENGTH)), "é!", "LENGTH")
    await _expect_joined(ctx, ids(*"a S"), (say("TO"), say("P"), say("late", finish=LENGTH)), "", "STOP")


async def _expect_joined(
    ctx: ClientContext, before: list[int], script: tuple[Say, ...], text: str, reason: str
) -> None:
    scene = ctx.play(*script)
    resume = pb.Resume(
        choices=[pb.ResumedChoice(generated_token_ids=before)], attempt=1, origin_lifetime_id="another"
    )
    answer = await ctx.start(scene, stop=["STOP"], resume=resume).ok()
    expect_equal(
        generated(only_turn(scene)), before, "the engine was handed in other tokens than the caller's"
    )
    expect_equal(answer.choice.text, text, "the text is not what comes behind the tokens that were handed in")
    expect_equal(answer.choice.reason, reason, "the finish reason is another one")
    total = len(before) + len(answer.choice.tokens)
    completion = answer.choice.end.completion_usage.completion_tokens
    expect_equal(completion, total, "usage does not count the tokens that were handed in, once")

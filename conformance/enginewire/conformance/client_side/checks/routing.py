"""Checks of what a backend carries between caller and engine: events, routing hints, traces."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.client_side.answer import Answer
from enginewire.conformance.client_side.checks import client_check
from enginewire.conformance.client_side.checks.engine import expect_refusal
from enginewire.conformance.client_side.context import ClientContext
from enginewire.conformance.client_side.stage.facts import WORKER_ID
from enginewire.conformance.client_side.stage.script import DIED, LENGTH, Say, Step, say
from enginewire.conformance.client_side.stage.turn import TWINS, Turn
from enginewire.conformance.session.features import BOUNDS
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.violation import NotApplicable, expect_equal

NOTE: Final = "kit.note"
LETTERS: Final = string.ascii_letters
FILLING: Final = [pb.EngineEvent(event=NOTE, comment=["x" * 8192])] * 16
"""More than a transport keeps for who reads nothing."""
OTHER: Final = "kit.other"
TRACEPARENT: Final = "traceparent"
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

NO_LIMITS: Final = pb.EngineConfig()
"""Of an engine that names none: those of the contract hold."""

Told = list[tuple[int, str, str, list[str]]]

HINTS: Final[Mapping[str, object]] = {
    "backend_instance_id": WORKER_ID,
    "decode_worker_id": WORKER_ID,
    "prefill_worker_id": None,
    "allowed_worker_ids": [WORKER_ID + 1, WORKER_ID],
}
"""Field to a value that the engine fits."""

OTHER_WORKERS: Final = (WORKER_ID + 1, 0)


@client_check("EVT-05")
async def events_pass_in_their_places(ctx: ClientContext) -> None:
    """Before, between and behind tokens; with and without an id and something to say."""
    first = pb.EngineEvent(event=NOTE, id="1", comment=["one", "", "two: \n"])
    second, third = pb.EngineEvent(event=NOTE), pb.EngineEvent(event=NOTE, id="", comment=["three"])
    scene = ctx.play(first, say("ab"), second, second, say("cd"), third, Say(finish=LENGTH))
    answer = await ctx.start(scene, annotations=[f"{NOTE}:x"]).ok()
    expected: Told = [
        (place, *_told(event)) for place, event in ((0, first), (2, second), (2, second), (4, third))
    ]
    seen: Told = [(place, *_told(item)) for place, item in answer.events if item.event == NOTE]
    expect_equal(seen, expected, "events are missing, changed or elsewhere (tokens before, name, id, text)")
    expect_equal(answer.choice.text, "abcd", "the text beside events is another one")


@client_check("EVT-05", "late-caller", needs=("EVT-05",))
async def events_wait_in_their_places(ctx: ClientContext) -> None:
    """One behind each token, for a caller that reads late: what waits may be joined."""
    answer = await _late(ctx)
    seen = [(place, item.id) for place, item in answer.events if item.event == NOTE]
    expected = [(0, "")] * len(FILLING) + [(place, str(place)) for place in range(1, len(LETTERS) + 1)]
    expect_equal(seen, expected, "events are missing or elsewhere (tokens before, id)")


@client_check("CLI-15", "late-caller", needs=("CLI-15",))
async def rows_wait_with_their_tokens(ctx: ClientContext) -> None:
    """The same answer with log-probabilities."""
    answer = await _late(ctx, logprobs=0)
    expect_equal(answer.choice.text, LETTERS, "the text is another one where the caller reads late")
    seen = [row for output in answer.choice.counted for row in output.logprobs.token_logprobs]
    expected = [-float(place) for place in range(len(LETTERS))]
    expect_equal(seen, expected, "the rows are not those of the tokens")


@client_check("CLI-22", "late-caller", needs=("CLI-22",))
async def choices_that_wait_do_not_mix(ctx: ClientContext) -> None:
    """In turns, and nothing between them: what waits together may be joined, of one choice."""
    script: list[Step] = [*FILLING]
    script += [Say([letter], index=place % 2) for place, letter in enumerate(LETTERS)]
    ends = [Say(finish=LENGTH, index=index) for index in (0, 1)]
    scene = ctx.play(*script, *ends)
    answer = await (await ctx.start_late(scene, annotations=[f"{NOTE}:x"], n=2)).ok()
    seen = {index: choice.text for index, choice in answer.choices.items()}
    expect_equal(
        seen, {0: LETTERS[::2], 1: LETTERS[1::2]}, "the texts are others where the caller reads late"
    )


async def _late(ctx: ClientContext, **changes: Value) -> Answer:
    """Events that fill the way, then tokens with one behind each; rows where they are asked for."""
    script: list[Step] = [*FILLING]
    for place, letter in enumerate(LETTERS):
        row = [-float(place)] if changes else []
        script += [Say([letter], row=row), pb.EngineEvent(event=NOTE, id=str(place + 1))]
    scene = ctx.play(*script, Say(finish=LENGTH))
    return await (await ctx.start_late(scene, annotations=[f"{NOTE}:x"], **changes)).ok()


@client_check("EVT-05", "continued")
async def answered_annotations_are_not_asked_again(ctx: ClientContext) -> None:
    """The engine is lost behind its event and some tokens; another one had none yet."""
    scene = ctx.play(pb.EngineEvent(event=NOTE), say("ab"), DIED, then=[[say("cd", finish=LENGTH)]])
    await ctx.start(scene, annotations=[f"{NOTE}:x", OTHER]).ended()
    again = [turn for turn in scene.turns[1:] if turn.part.HasField("resume")]
    if not again:
        raise NotApplicable("this backend does not resume")
    _expect_asked(again[0])


@client_check("EVT-05", "begun-again")
async def answered_annotations_are_not_asked_from_the_beginning(ctx: ClientContext) -> None:
    """The engine is lost behind its event, without any token."""
    scene = ctx.play(pb.EngineEvent(event=NOTE), DIED, then=[[say("cd", finish=LENGTH)]])
    await ctx.start(scene, annotations=[f"{NOTE}:x", OTHER]).ended()
    if len(scene.turns) < 2:
        raise NotApplicable("this backend sends no request again")
    _expect_asked(scene.turns[1])


def _expect_asked(turn: Turn) -> None:
    """For what had no event yet."""
    asked = list(turn.part.annotations)
    expect_equal(asked, [OTHER], "the next engine is asked for other annotations than those without an event")


@client_check("CLI-41")
async def opaque_fields_are_bounded(ctx: ClientContext) -> None:
    """As much as there may be of each, then one more; the engine reads none of it."""
    for bound in BOUNDS:
        if bound.is_opaque and not bound.rule.capability:
            good, bad = ({bound.field: bound.make(bound.most(NO_LIMITS) + more)} for more in (0, 1))
            await expect_refusal(ctx, bound.rule.path, good=good, bad=bad)


@client_check("CLI-42")
async def keys_say_what_their_fields_say(ctx: ClientContext) -> None:
    """The caller sends the fields, and keys that say something else; a backend may refuse that."""
    scene = ctx.play(say("ab", finish=LENGTH))
    keys = tuple((key, "5") for key in TWINS)
    await ctx.start(scene, metadata=keys, dp_rank=0, priority=3, routing_key="3").ended()
    sent = [
        (turn, key, name)
        for turn in scene.turns
        for key, name in TWINS.items()
        if key in turn.metadata and turn.part.routing.HasField(name)  # type: ignore[arg-type]  # a field of it
    ]
    if not sent:
        raise NotApplicable("this backend sends no key beside the field that it repeats")
    for turn, key, name in sent:
        said = str(getattr(turn.part.routing, name))
        expect_equal(turn.metadata[key], said, f"{key} is not what routing.{name} says")


def _told(item: pb.EngineEvent | pb.Annotated) -> tuple[str, str, list[str]]:
    return item.event, item.id if item.HasField("id") else "none", list(item.comment)


@client_check("RTG-01")
async def a_worker_that_is_not_there_is_refused(ctx: ClientContext) -> None:
    """The engine says which worker it is; each hint names it, then another one, or worker 0."""
    for name, good in HINTS.items():
        for other in OTHER_WORKERS:
            bad = [other] if name == "allowed_worker_ids" else other
            await expect_refusal(ctx, f"routing.{name}", good={name: good}, bad={name: bad})


@client_check("RTG-02")
async def another_attempt_names_the_trace_before(ctx: ClientContext) -> None:
    """The engine dies before its first token."""
    scene = ctx.play(DIED, then=[[say("ab", finish=LENGTH)]])
    await ctx.start(scene, metadata=((TRACEPARENT, TRACE),)).ended()
    if len(scene.turns) < 2:
        raise NotApplicable("this backend sends no request again")
    before, again = scene.turns[:2]
    if TRACEPARENT not in before.metadata:
        raise NotApplicable("this backend passes no traceparent on")
    _, trace_id, span_id, _ = before.metadata[TRACEPARENT].split("-")
    expected = pb.TraceLink(trace_id=trace_id, span_id=span_id)
    expect_equal(again.part.migration_link, expected, "migration_link is not what was sent before")

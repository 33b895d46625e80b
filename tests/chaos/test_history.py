"""The judge sees what is wrong with an answer: nothing that it lets pass would be seen by anybody else."""

from __future__ import annotations

import asyncio

import pytest

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import Annotated, BackendOutput
from enginewire.backend.engines.failure import internal_failure
from tests.backend.asking import Heard
from tests.chaos.history import Record, Truth, reasons, tally

Item = Annotated[BackendOutput]
USAGE = pb.CompletionUsage(prompt_tokens=1, completion_tokens=3, total_tokens=4)


def piece(place: int, ids: list[int], **more: object) -> Item:
    output = BackendOutput(token_ids=ids, first_output_position=place, text=str(ids), **more)
    return Annotated(data=output)


def end(place: int, ids: list[int]) -> Item:
    return piece(place, ids, finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=USAGE)


FAILED = Annotated(error=internal_failure("gone"))
RIGHT = [piece(0, [1]), piece(1, [2]), end(2, [3])]
TRUTH = Truth.of(Heard(RIGHT))
WRONG = {
    "a token twice": ([piece(0, [1]), piece(0, [1]), piece(1, [2]), end(2, [3])], "duplicated"),
    "a second end": ([*RIGHT, end(3, [])], "duplicated"),
    "a token behind the end": ([*RIGHT, piece(3, [4])], "duplicated"),
    "a token left out": ([piece(0, [1]), end(2, [3])], "lost"),
    "no end": (RIGHT[:2], "lost"),
    "a failure": ([*RIGHT[:2], FAILED], "lost"),
    "another token": ([piece(0, [1]), piece(1, [9]), end(2, [3])], "changed"),
    "another usage": (
        [
            *RIGHT[:2],
            piece(
                2,
                [3],
                finish_reason=pb.FINISH_REASON_LENGTH,
                completion_usage=pb.CompletionUsage(prompt_tokens=1, total_tokens=1),
            ),
        ],
        "changed",
    ),
    "another end": (
        [*RIGHT[:2], piece(2, [3], finish_reason=pb.FINISH_REASON_STOP, completion_usage=USAGE)],
        "changed",
    ),
}


def record(items: list[Item], *, was_left: bool = False) -> Record:
    # Whether it is done is not asked here.
    return Record(0, Heard(items), None, was_left)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_called_by_its_name(name: str) -> None:
    items, fault = WRONG[name]
    assert record(items).judge(TRUTH) == fault


def test_the_right_answer_and_a_beginning_of_it_are_right() -> None:
    assert record(RIGHT).judge(TRUTH) == ""
    for count in range(3):
        assert record(RIGHT[:count], was_left=True).judge(TRUTH) == ""
    assert record([piece(0, [9])], was_left=True).judge(TRUTH) == "changed"


def test_streams_are_counted_by_what_is_wrong() -> None:
    records = [record(RIGHT), *(record(items) for items, _ in WRONG.values())]
    for each in records:
        each.judge(TRUTH)
    assert tally(records) == {"streams": 10, "lost": 3, "duplicated": 3, "changed": 3}


async def test_it_is_told_why_streams_have_a_fault() -> None:
    async def raises() -> Heard:
        raise KeyError("handle")

    tasks = [asyncio.create_task(raises()) for _ in range(2)]
    await asyncio.wait(tasks)
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    records = [Record(0, Heard(RIGHT[:2]), task) for task in tasks]
    records += [Record(0, Heard(items), ended) for items in ([FAILED], [], WRONG["another end"][0], RIGHT)]
    for each in records:
        each.judge(TRUTH)
    message = FAILED.error.message
    assert reasons(records) == [
        "2 × lost: it ended with KeyError('handle')",
        f"1 × lost: it ended with INTERNAL, {message}",
        "1 × lost: it ended with nothing",
        "1 × changed: it ended with the end of the answer",
    ]

"""Servers whose streams have another shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import each_changed, mutant
from enginewire.conformance.reference.capabilities.multiplexed import Multiplex
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import Settings

SLOW = replace(Settings(), step_seconds=0.005)
"""For faults that show only when time passes between tokens."""

Outputs = AsyncIterator[pb.LLMEngineOutput]


def is_long(job: Job) -> bool:
    """True for the long answer of the check: any other one would keep whole checks waiting for its end."""
    return "STR-11" in job.request_id


@mutant("empty_stream", kills="STR-01")
class EmptyStream(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if not output:
                yield output


@each_changed(Reference.outputs, "no_terminal", kills="STR-02")
def no_terminal(output: pb.LLMEngineOutput) -> None:
    output.ClearField("finish_reason")


@mutant("two_terminals", kills="STR-02")
class TwoTerminals(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            yield output
            if output.finish_reason:
                yield pb.LLMEngineOutput(index=output.index, finish_reason=output.finish_reason)


@mutant("after_terminal", kills="STR-03")
class AfterTerminal(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            yield output
            if output.finish_reason:
                yield pb.LLMEngineOutput(index=output.index, token_ids=[1])


@mutant("drop_empty_terminal", kills="STR-04", also=("MUX-08/seen", "STR-02/seen"))
class DropEmptyTerminal(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if output.token_ids:
                yield output


@mutant("cumulative_tokens", kills="STR-05", also="LOG-01/seen")
class CumulativeTokens(Reference):
    async def outputs(self, job: Job) -> Outputs:
        tokens: dict[int, list[int]] = {}
        async for output in super().outputs(job):
            so_far = tokens.setdefault(output.index, [])
            so_far += output.token_ids
            output.token_ids[:] = so_far
            output.first_output_position = 0
            yield output


@mutant("swap_chunks", kills="STR-06", also="STR-03/seen")
class SwapChunks(Reference):
    async def outputs(self, job: Job) -> Outputs:
        held: list[pb.LLMEngineOutput] = []
        async for output in super().outputs(job):
            if output.first_output_position == 1 and not output.finish_reason:
                held.append(output)
                continue
            yield output
            while held and output.first_output_position > 1:
                yield held.pop()


@mutant("drop_chunk", kills="STR-06")
class DropChunk(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if output.first_output_position != 1 or output.finish_reason:
                yield output


@mutant("drop_chunk_and_renumber", kills="STR-06", also=("INF-04/seen", "USE-01/seen", "USE-05/seen"))
class DropChunkAndRenumber(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            if output.first_output_position == 1 and not output.finish_reason:
                continue
            if output.first_output_position > 1:
                output.first_output_position -= 1
            yield output


@mutant("dup_chunk", kills="STR-06")
class DupChunk(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            yield output
            if output.first_output_position == 1 and not output.finish_reason:
                yield output


@mutant("wrong_request_id", kills="STR-07")
class WrongRequestId(Reference):
    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        async for response in super().responses(job):
            response.request_id = next(reversed(self.live), response.request_id)
            yield response


@mutant("empty_chunks", kills="STR-08", also="LOG-07/seen")
class EmptyChunks(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            position = output.first_output_position
            yield pb.LLMEngineOutput(index=output.index, first_output_position=position)
            yield output


@mutant("error_twice", kills="STR-09")
class ErrorTwice(Reference):
    async def outputs(self, job: Job) -> Outputs:
        async for output in super().outputs(job):
            yield output
            if output.finish_reason == pb.FINISH_REASON_CANCELLED:
                raise Refusal(pb.ERROR_REASON_CANCELLED, "it was aborted")


@each_changed(Reference.outputs, "finish_unknown", kills="STR-10")
def finish_unknown(output: pb.LLMEngineOutput) -> None:
    if output.finish_reason:
        output.finish_reason = 99  # type: ignore[assignment]  # that is the mistake


@mutant("buffer_all", kills="STR-11")
class BufferAll(Reference):
    async def outputs(self, job: Job) -> Outputs:
        whole: dict[int, pb.LLMEngineOutput] = {}
        async for output in super().outputs(job):
            if not is_long(job):
                yield output
                continue
            gathered = whole.setdefault(output.index, pb.LLMEngineOutput())
            position = gathered.first_output_position
            gathered.MergeFrom(output)
            gathered.first_output_position = position
            if gathered.finish_reason:
                yield gathered


@mutant("burst_at_the_end", kills="STR-11")
class BurstAtTheEnd(Reference):
    settings = SLOW

    async def outputs(self, job: Job) -> Outputs:
        held = []
        async for output in super().outputs(job):
            held.append(output)
            if output.finish_reason or not is_long(job):
                for early in held:
                    yield early
                held.clear()


Holds = Callable[[pb.LLMEngineOutput], bool]


async def held_back(outputs: Outputs, job: Job, holds: Holds = lambda output: True) -> Outputs:
    """Outputs for which `holds` come at the end of the last choice; only of the long answers."""
    held = []
    async for output in outputs:
        if is_long(job) and holds(output):
            held.append(output)
        else:
            yield output
        if not job.open_choices:
            for early in held:
                yield early
            held.clear()


@mutant("rows_wait_for_the_end", kills="STR-11/options")
class RowsWaitForTheEnd(Reference):
    """Of answers with log-probabilities, which are put together at their end."""

    settings = SLOW

    async def outputs(self, job: Job) -> Outputs:
        outputs = super().outputs(job)
        is_told = job.request.output_options.HasField("logprobs")
        async for output in held_back(outputs, job) if is_told else outputs:
            yield output


@mutant("later_choices_wait_for_the_end", kills="STR-11/options")
class LaterChoicesWaitForTheEnd(Reference):
    settings = SLOW

    async def outputs(self, job: Job) -> Outputs:
        async for output in held_back(super().outputs(job), job, lambda output: output.index > 0):
            yield output


@mutant("later_choices_wait_when_the_first_has_ended", kills="STR-11/options")
class LaterChoicesWaitWhenTheFirstHasEnded(Reference):
    """Or was handed in as finished: its tokens wake the reader."""

    settings = SLOW

    async def outputs(self, job: Job) -> Outputs:
        def holds(output: pb.LLMEngineOutput) -> bool:
            return output.index > 0 and job.choices[0].is_finished

        async for output in held_back(super().outputs(job), job, holds):
            yield output


@mutant("earlier_choices_wait_when_the_last_has_ended", kills="STR-11/options")
class EarlierChoicesWaitWhenTheLastHasEnded(Reference):
    """By itself, with nothing handed in as finished."""

    settings = SLOW

    async def outputs(self, job: Job) -> Outputs:
        last, resumed = job.choices[-1], job.request.resume.choices

        def holds(output: pb.LLMEngineOutput) -> bool:
            return (
                output.index < last.index and last.is_finished and not any(each.finished for each in resumed)
            )

        async for output in held_back(super().outputs(job), job, holds):
            yield output


@mutant("streams_gather_as_their_first", kills="STR-11/multiplexed")
class StreamsGatherAsTheirFirst(Reference):
    """What the first request of a stream allows to be gathered is gathered for all of them."""

    settings = SLOW

    def __init__(self) -> None:
        super().__init__()
        self._intervals: dict[Multiplex, int] = {}
        self._of_request: dict[str, int] = {}

    def submit(self, stream: Multiplex, submit: pb.Submit, call: Call) -> None:
        first = self._intervals.setdefault(stream, submit.generate.request.output_options.stream_interval)
        self._of_request[submit.generate.request_id] = first
        super().submit(stream, submit, call)

    async def outputs(self, job: Job) -> Outputs:
        held = []
        async for output in super().outputs(job):
            held.append(output)
            if output.finish_reason or len(held) >= self._of_request.get(job.request_id, 1):
                for early in held:
                    yield early
                held.clear()


@mutant("headers_late", kills="STR-12")
class HeadersLate(Reference):
    settings = SLOW

    async def accept(self, job: Job, call: Call) -> None:
        """Let gRPC send them with the first message."""


@each_changed(Reference.responses, "events_name_no_request", kills="STR-07")
def events_name_no_request(response: pb.GenerateResponse) -> None:
    if response.HasField("engine_event"):
        response.ClearField("request_id")


@mutant("failures_end_their_choices_first", kills="STR-09/failed")
class FailuresEndTheirChoicesFirst(Reference):
    """Of what is found out while a request runs."""

    def fail(self, job: Job, failure: Refusal) -> None:
        is_late = failure.detail.reason == pb.ERROR_REASON_INVALID_REQUEST
        for choice in job.open_choices if is_late else ():
            position, reason = len(choice.tokens), pb.FINISH_REASON_ERROR
            output = pb.LLMEngineOutput(index=choice.index, first_output_position=position)
            output.finish_reason = reason
            self.send(job, output)
        super().fail(job, failure)


@mutant("timeouts_end_their_choices_first", kills="STR-09/multiplexed", also=("MUX-02/seen", "MUX-12/seen"))
class TimeoutsEndTheirChoicesFirst(Reference):
    def fail(self, job: Job, failure: Refusal) -> None:
        is_late = failure.detail.reason == pb.ERROR_REASON_DEADLINE_EXCEEDED and job.is_running
        for choice in job.open_choices if is_late and "STR-09" in job.request_id else ():
            self.send(job, self.cancelled(choice))
        super().fail(job, failure)

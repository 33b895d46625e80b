"""Backends that are wrong towards their engine: what they send, when they leave, whose word counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from enginewire import v1 as pb
from enginewire.conformance.client_side.failure import Failed
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import (
    CONTEXT,
    EngineCall,
    ReferenceBackend,
    Request,
)


class Deaf(ReferenceBackend):
    """Never tells the engine that it leaves; each subclass says when not."""

    def __init__(self, engine: str) -> None:
        super().__init__(engine)
        self._forgotten: set[asyncio.Task[None]] = set()

    def forget(self, call: EngineCall) -> None:
        """Let the call run on, as a reader whose result nobody wants."""
        task = asyncio.ensure_future(_drain(call))
        self._forgotten.add(task)
        task.add_done_callback(self._forgotten.discard)


async def _drain(call: EngineCall) -> None:
    try:
        async for _ in call:
            pass
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass


@client_mutant("stop_is_not_told", kills=("CLI-06", "CLI-08"))
class StopIsNotTold(Deaf):
    def leave(self, call: EngineCall, request: Request) -> None:
        if request.is_finished:
            self.forget(call)
        else:
            call.cancel()


@client_mutant("caller_leaving_is_not_told", kills=("CLI-12", "CLI-12/before-acceptance", "CLI-12/continued"))
class CallerLeavingIsNotTold(Deaf):
    async def outputs(self, call: EngineCall, request: Request) -> AsyncIterator[pb.Annotated]:
        # The engine's call belongs to a task of its own, which nobody ends.
        queue: asyncio.Queue[pb.GenerateResponse | Exception | None] = asyncio.Queue()

        async def read() -> None:
            try:
                async for response in call:
                    queue.put_nowait(response)
                queue.put_nowait(None)
            except grpc.aio.AioRpcError as error:
                queue.put_nowait(self.failure_of(error, request))

        task = asyncio.ensure_future(read())
        self._forgotten.add(task)
        task.add_done_callback(self._forgotten.discard)
        while (response := await queue.get()) is not None:
            if isinstance(response, Exception):
                raise response
            if item := self.received(response, request):
                yield item
            if request.is_finished:
                call.cancel()
                return

    def leave(self, call: EngineCall, request: Request) -> None:
        pass


@client_mutant("passes_on_what_follows_a_terminal", kills="CLI-11")
class PassesOnWhatFollowsATerminal(ReferenceBackend):
    def take(self, output: pb.LLMEngineOutput, request: Request) -> pb.BackendOutput | None:
        if output.index < len(request.choices) and request.choices[output.index].is_over:
            return pb.BackendOutput(index=output.index, token_ids=output.token_ids)
        return super().take(output, request)


@client_mutant("no_usage_after_a_stop", kills=("CLI-24/after-a-stop", "CLI-30"))
class NoUsageAfterAStop(ReferenceBackend):
    def usage(self, request: Request) -> pb.CompletionUsage:
        found_here = any(choice.match for choice in request.choices)
        return pb.CompletionUsage() if found_here else super().usage(request)


@client_mutant("usage_forgets_the_prompt", kills=("CLI-24", "CLI-24/after-a-stop"))
class UsageForgetsThePrompt(ReferenceBackend):
    def usage(self, request: Request) -> pb.CompletionUsage:
        usage = super().usage(request)
        usage.prompt_tokens, usage.total_tokens = 0, usage.completion_tokens
        return usage


@client_mutant("stop_reaches_the_engine", kills="CLI-31")
class StopReachesTheEngine(ReferenceBackend):
    def engine_part(self, request: Request) -> pb.PreprocessedRequest:
        part = super().engine_part(request)
        part.stop_conditions.stop[:] = request.part.stop_conditions.stop
        return part


@client_mutant("deadline_not_passed_on", kills=("CLI-32", "CLI-32/again"))
class DeadlineNotPassedOn(ReferenceBackend):
    def seconds_left(self, context: CONTEXT) -> float | None:
        return None


@client_mutant("takes_any_request", kills=("CLI-33/empty-stop", "CLI-33/min-above-max"))
class TakesAnyRequest(ReferenceBackend):
    def check_request(self, part: pb.PreprocessedRequest) -> None:
        pass


@client_mutant("empty_stops_beside_others_are_left_out", kills="CLI-33/empty-stop")
class EmptyStopsBesideOthersAreLeftOut(ReferenceBackend):
    def check_request(self, part: pb.PreprocessedRequest) -> None:
        if any(part.stop_conditions.stop):
            part.stop_conditions.stop[:] = filter(None, part.stop_conditions.stop)
        super().check_request(part)


@client_mutant(
    "refusal_without_a_field", kills=("CLI-33/empty-stop", "CLI-33/min-above-max", "CLI-41", "RTG-01")
)
class RefusalWithoutAField(ReferenceBackend):
    def invalid(self, field: str, message: str) -> Failed:
        return super().invalid("", message)


@client_mutant("tokens_after_the_stop", kills="CLI-06")
class TokensAfterTheStop(ReferenceBackend):
    async def outputs(self, call: EngineCall, request: Request) -> AsyncIterator[pb.Annotated]:
        try:
            async for response in call:
                if request.is_finished:
                    yield pb.Annotated(data=pb.BackendOutput(token_ids=response.output.token_ids))
                    return
                if item := self.received(response, request):
                    yield item
                if request.is_finished and not request.choices[0].match:
                    return
        except grpc.aio.AioRpcError as error:
            raise self.failure_of(error, request) from error


@client_mutant("each_attempt_has_the_whole_time", kills="CLI-32/again")
class EachAttemptHasTheWholeTime(ReferenceBackend):
    def __init__(self, engine: str) -> None:
        super().__init__(engine)
        self._whole: dict[CONTEXT, float | None] = {}

    def seconds_left(self, context: CONTEXT) -> float | None:
        return self._whole.setdefault(context, super().seconds_left(context))

"""What broken backends do when gRPC drops a call of theirs, in front of a scripted engine."""

from __future__ import annotations

import asyncio
from typing import cast

from enginewire import v1 as pb
from enginewire.conformance.client_side.mutants.engine import StopIsNotTold
from enginewire.conformance.client_side.reference.backend import CONTEXT, Request
from enginewire.conformance.client_side.reference.text import ReferenceChoice
from enginewire.conformance.client_side.stage.backends import SCRIPTED
from enginewire.conformance.client_side.stage.engine import ScriptedEngine
from enginewire.conformance.client_side.stage.script import Stay, say
from enginewire.conformance.running.servers.in_process import InProcess
from tests.patience import PATIENCE_SECONDS


class Context:
    """Of a call without a deadline."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> float | None:
        """None: no deadline."""
        return None


async def test_a_backend_that_hides_stops_still_leaves_for_a_caller_that_is_gone() -> None:
    engine = ScriptedEngine()
    await engine.start(SCRIPTED)
    backend = StopIsNotTold(engine.target)
    server = await InProcess(backend).start()
    try:
        scene = engine.play([1, 2, 3], [[say("a"), Stay()]])
        part = pb.PreprocessedRequest(token_ids=scene.prompt)
        request = Request(part, [ReferenceChoice(0, backend.vocabulary, part, frozenset())])
        asked = pb.BackendServiceGenerateRequest(request_id="a", request=part)
        answer = backend.answer(asked, request, cast(CONTEXT, Context()))
        await anext(answer)
        await answer.aclose()  # type: ignore[attr-defined]  # a generator
        await asyncio.wait_for(scene.turns[0].left.wait(), PATIENCE_SECONDS)
    finally:
        await server.stop()
        await engine.stop()

"""What a requirement demands, for whoever has to fulfil it: its sentence, an example, what usually breaks it.

Nothing is written by hand for a single id. The example is what its check does to the reference, run here and
now; the usual causes are the mutants that the check finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from enginewire.conformance.checks import all_checks
from enginewire.conformance.client_side.mutants import client_mutants
from enginewire.conformance.mutants import mutants
from enginewire.conformance.proof.self_test import judge
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.variants.handoffs import Decode
from enginewire.conformance.reference.variants.keyed import Keyed
from enginewire.conformance.reference.variants.on_tls import OnTls
from enginewire.conformance.reference.variants.traced import Traced
from enginewire.conformance.report.calls import Call, call_of
from enginewire.conformance.report.standing import name
from enginewire.conformance.report.text import shortened
from enginewire.conformance.requirements.levels import level_of
from enginewire.conformance.requirements.requirement import Requirement
from enginewire.conformance.running.outcome import Outcome, Report, Status
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.wire.exchange import Exchange

LONGEST_REQUEST: Final = 600
"""Characters. A prompt may be long, and its first ids say enough."""

SHOWN_MESSAGES: Final = 4
ANSWER_WIDTH: Final = 240

SERVERS: Final = {"disaggregation": Decode, "auth": Keyed, "tls": OnTls, "tracing": Traced}
"""Of profiles that say nothing about the reference as it is."""

ASIDE: Final = ("DiscoveryService.", "/grpc.health.v1.", "EngineService.Abort")
"""Calls by which most checks only look on, or tidy up."""


def explain(requirement: Requirement) -> str:
    """Everything about one requirement, for a terminal. Runs its check against the reference."""
    return "\n".join([*_demand(requirement), *_example(requirement), *_causes(requirement)])


def _demand(requirement: Requirement) -> Iterator[str]:
    level = level_of(requirement)
    of_level = f"level {level} ({name(level)})" if level else "of no level"
    yield f"{requirement.id}  {requirement.level}, {of_level}, profile {requirement.profile}"
    yield f"  {requirement.text}"
    yield f"  contract: docs/contract.md#{requirement.anchor}, since revision {requirement.since}"
    yield f"  applies to: {requirement.gate}"
    yield f"  checks: {', '.join(requirement.checks) or requirement.excluded or 'none yet'}"


def _example(requirement: Requirement) -> Iterator[str]:
    if exchange := _shown(requirement):
        call = call_of(exchange, most=SHOWN_MESSAGES, width=ANSWER_WIDTH)
        yield ""
        yield "one of the calls of its check, and a right answer to it, from the reference:"
        yield f"  {call.method}"
        yield f"  {_request(exchange.request)}"
        yield from (f"    {line}" for line in _answer(call))


def _answer(call: Call) -> Iterator[str]:
    half = len(call.messages) // 2 if call.left_out else -1
    for number, received in enumerate(call.messages):
        if number == half:
            yield f"… {call.left_out} more …"
        yield received.text
    yield call.status
    if call.detail:
        yield f"  {call.detail}"


def _causes(requirement: Requirement) -> Iterator[str]:
    found = [each for each in (*mutants(), *client_mutants()) if each.name in requirement.mutants]
    if found:
        yield ""
        yield "servers that break it, each of which the check finds:"
    for each in found:
        said = each.server.__dict__.get("__doc__")
        because = f": {' '.join(said.split())}" if said else ""
        yield f"  {each.name.removeprefix('client/').replace('_', ' ')}{because}"


def _shown(requirement: Requirement) -> Exchange | None:
    """The call that says most; None for a check without one, such as those of backends."""
    if requirement.id not in {check.id for check in all_checks()}:
        return None
    judged = [each for each in _judged(requirement).outcomes if each.requirement.id == requirement.id]
    passed = next((each for each in judged if each.status is Status.PASS and each.exchanges), None)
    return _telling(passed) if passed else None


def _judged(requirement: Requirement) -> Report:
    server = SERVERS.get(requirement.profile, Reference)
    return asyncio.run(judge(server, frozenset(Phase), run=[requirement.id]))


def _telling(outcome: Outcome) -> Exchange:
    """The last one that is not only a look or a tidying up: what a check leads up to comes last."""
    ended = [each for each in outcome.exchanges if each.code is not None] or list(outcome.exchanges)
    return next((each for each in reversed(ended) if not each.method.startswith(ASIDE)), ended[-1])


def _request(request: Message | bytes | None) -> str:
    if request is None:
        return "(a stream of requests)"
    if isinstance(request, bytes):
        return shortened(repr(request), LONGEST_REQUEST)
    as_json = MessageToJson(request, indent=None, preserving_proto_field_name=True)
    return shortened(as_json, LONGEST_REQUEST)

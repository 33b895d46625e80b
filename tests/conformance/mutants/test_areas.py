"""Correct servers of other kinds than the reference pass the checks of an area."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from enginewire import v1 as pb
from enginewire.conformance.mutants.server.versioning import Told
from enginewire.conformance.mutants.streams.probe import TwoRanks
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings, without
from enginewire.conformance.running.outcome import Status
from enginewire.conformance.running.selection import Selection
from tests.conformance.judging import judged, statuses
from tests.long import long, long_but


class Echo(Reference):
    """Its most probable tokens are its prompt, again and again, as the mocker's are."""

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        logits = super().logits(tokens, adapter)
        period = self.config.vocab_size - 1
        logits[(tokens[-1] * 3 + 1) % period] += 20.0
        return logits


class OneToken(Reference):
    """A model that knows one token."""

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        return [20.0 * (token == 7) for token in range(self.config.vocab_size)]


class Tied(Reference):
    """Logits of few different values, as those of 4-bit weights: what ties with the last one kept is kept."""

    def logits(self, tokens: Sequence[int], adapter: str = "") -> list[float]:
        return [float(round(logit)) for logit in super().logits(tokens, adapter)]

    def kept(
        self, logits: list[float], temperature: float, options: pb.SamplingOptions
    ) -> list[tuple[int, float]]:
        last = sorted(logits)[-options.top_k] if options.top_k > 1 else max(logits)
        tied = pb.SamplingOptions()
        tied.CopyFrom(options)
        tied.top_k = sum(logit >= last for logit in logits) if options.top_k > 1 else options.top_k
        return super().kept(logits, temperature, tied)


class Bare(Reference):
    settings = replace(Settings(), capabilities=())


class NoAlternatives(Reference):
    settings = replace(Settings(), limits={"max_logprobs": 0, "max_prompt_logprobs": 0})


class OneSlot(Reference):
    settings = replace(without("seed", "multiple_choices"), max_num_seqs=1)


class FewCallsAtOnce(Reference):
    """Takes fewer calls from one connection than its queue has places."""

    settings = replace(Settings(), max_queued=128)

    def server_options(self) -> list[tuple[str, int]]:
        return [*super().server_options(), ("grpc.max_concurrent_streams", 100)]


async def unexpected(server: type[Reference], *areas: str) -> list[str]:
    report = await judged(server, selection=Selection(run=areas))
    return [f"{outcome.key}: {outcome.message}" for outcome in report.unexpected]


@pytest.mark.parametrize("server", long_but([Echo], [Echo, OneToken, Bare, OneSlot]))
async def test_stops_of_another_model(server: type[Reference]) -> None:
    assert await unexpected(server, "STP-*") == []


@long
@pytest.mark.parametrize("server", [Echo, Tied, Bare, OneSlot])
async def test_sampling_of_another_model(server: type[Reference]) -> None:
    assert await unexpected(server, "SAM-0[5-9]*", "SAM-1*", "LOG-11") == []


@long
@pytest.mark.parametrize("server", [Echo, OneToken, NoAlternatives, Bare])
async def test_log_probabilities_of_another_model(server: type[Reference]) -> None:
    assert await unexpected(server, "LOG-*") == []


@long
@pytest.mark.parametrize("server", [Echo, NoAlternatives, Bare, OneSlot])
async def test_limits_of_another_server(server: type[Reference]) -> None:
    assert await unexpected(server, "LIM-*", "ERR-0[45]*") == []


@pytest.mark.parametrize("server", long_but([OneSlot], [OneSlot, Bare]))
async def test_choices_of_another_server(server: type[Reference]) -> None:
    assert await unexpected(server, "SEQ-*") == []


async def test_each_of_two_ranks_can_be_probed() -> None:
    report = await judged(TwoRanks, selection=Selection(run=["PRB-*", "INF-07"]))
    assert statuses(report)["PRB-05"] is Status.PASS
    assert report.unexpected == []


async def test_a_queue_is_filled_though_a_connection_takes_few_calls() -> None:
    report = await judged(FewCallsAtOnce, selection=Selection(run=["ERR-16"]))
    assert statuses(report)["ERR-16"] is Status.PASS


class Older(Told):
    """A server of the first revision: it serves nobody who names a newer one."""

    def told(self, info: pb.GetEngineInfoResponse) -> None:
        info.contract_revision = info.maximum_client_revision = 1

    def check_revision(self, revision: int) -> None:
        if revision > 1:
            accepted = {"minimum_client_revision": "1", "maximum_client_revision": "1"}
            reason, message = pb.ERROR_REASON_REVISION_MISMATCH, "client_revision: not accepted"
            raise Refusal(reason, message, field="client_revision", metadata=accepted)


@long
async def test_a_server_of_an_older_revision_is_judged_in_its_own() -> None:
    areas = ("INF-*", "STR-*", "EVT-*", "VER-*", "EMB-*")
    report = await judged(Older, selection=Selection(run=areas))
    assert not report.unexpected
    assert statuses(report)["VER-02"] is statuses(report)["VER-03"] is Status.PASS

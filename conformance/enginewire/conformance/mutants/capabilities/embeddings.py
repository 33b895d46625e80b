"""Servers whose vectors are wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.capabilities.embeddings import MOST_INPUTS, SIZE, EmbeddingJob
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.service import Call
from enginewire.conformance.reference.settings import Settings


@mutant("order_swapped", kills="EMB-01")
class OrderSwapped(Reference):
    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        return super().vectors(sorted(inputs, key=len))


@mutant("order_of_many_swapped", kills="EMB-01")
class OrderOfManySwapped(Reference):
    """By length in a large batch, and never put back."""

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        return super().vectors(sorted(inputs, key=len) if len(inputs) > 16 else inputs)


@mutant("inputs_that_begin_alike_are_one", kills="EMB-03")
class InputsThatBeginAlikeAreOne(Reference):
    """Computed once in a batch, and known by length and beginning."""

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        known: dict[tuple[int, ...], Sequence[int]] = {}
        return super().vectors([known.setdefault((len(each), *each[:16]), each) for each in inputs])


@mutant("fewer_inputs_than_may_be", kills="LIM-10/embed")
class FewerInputsThanMayBe(Reference):
    def check_inputs(self, count: int, size: int) -> None:
        if count >= MOST_INPUTS:
            raise invalid("token_ids", "are too many for one answer", count, f"below {MOST_INPUTS}")
        super().check_inputs(count, size)


@mutant("any_model_embeds", kills="ERR-06/embed")
class AnyModelEmbeds(Reference):
    def check_embed(self, request: pb.EmbedRequest) -> None:
        request.request.ClearField("model")
        super().check_embed(request)


@mutant("dims_wrong", kills="EMB-02")
class DimsWrong(Reference):
    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        request.request.ClearField("dimensions")
        return await super().embed(request, call)


@mutant("dims_are_cut_to_those_there_are", kills="EMB-02")
class DimsAreCutToThoseThereAre(Reference):
    def check_embed(self, request: pb.EmbedRequest) -> None:
        if request.request.dimensions > SIZE:
            request.request.dimensions = SIZE
        super().check_embed(request)


@mutant("dims_are_the_last", kills="EMB-02")
class DimsAreTheLast(Reference):
    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        size = request.request.dimensions
        request.request.ClearField("dimensions")
        response = await super().embed(request, call)
        for embedding in response.output.embeddings:
            embedding.values[:] = embedding.values[-size:]
        return response


@mutant("nan_vec", kills="EMB-02")
class NanVec(Reference):
    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        response = await super().embed(request, call)
        if request.request.HasField("dimensions"):
            response.output.embeddings[0].values[0] = math.nan
        return response


@mutant("padding_leaks", kills="EMB-03")
class PaddingLeaks(Reference):
    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        longest = max(map(len, inputs))
        padded = [[*tokens, *[0] * ((longest - len(tokens)) // 4)] for tokens in inputs]
        return super().vectors(padded)


@mutant("not_normalised", kills="EMB-04")
class NotNormalised(Reference):
    def vector(self, tokens: Sequence[int]) -> list[float]:
        return [value * (1 if len(tokens) < 5 else 2) for value in super().vector(tokens)]


@mutant("shorter_ones_are_not_normalised", kills="EMB-04")
class ShorterOnesAreNotNormalised(Reference):
    """They are cut after all have length 1."""

    def shortened(self, vector: Sequence[float], size: int) -> list[float]:
        return list(vector[:size])


@mutant("bad_item_silent", kills="EMB-05")
class BadItemSilent(Reference):
    def check_input(self, path: str, tokens: Sequence[int]) -> None:
        super().check_input("token_ids", tokens)


@mutant("embed_usage_zero", kills="EMB-06")
class EmbedUsageZero(Reference):
    def embedded_tokens(self, inputs: Sequence[Sequence[int]]) -> int:
        return 0


@mutant("embeddings_cannot_be_aborted", kills="EMB-07")
class EmbeddingsCannotBeAborted(Reference):
    """Only what generates is known by its id."""

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        if isinstance(self.live.get(request_id), EmbeddingJob):
            return pb.ABORT_OUTCOME_UNKNOWN
        return super().abort_id(request_id)


@mutant("all_are_those_that_generate", kills="EMB-07")
class AllAreThoseThatGenerate(Reference):
    def abort_all(self) -> list[str]:
        embeddings = {name: job for name, job in self.live.items() if isinstance(job, EmbeddingJob)}
        for name in embeddings:
            del self.live[name]
        ids = super().abort_all()
        self.live |= embeddings
        return ids


@mutant("aborted_embeddings_are_answered", kills="EMB-07")
class AbortedEmbeddingsAreAnswered(Reference):
    """The abort ends the work, and what there is by then is sent."""

    async def embedded(self, job: Job) -> None:
        async for _ in self.outputs(job):
            pass


@mutant("aborted_embeddings_are_unavailable", kills=("EMB-07", "INF-13/waiting"))
class AbortedEmbeddingsAreUnavailable(Reference):
    async def embedded(self, job: Job) -> None:
        async for _ in self.outputs(job):
            raise Refusal(pb.ERROR_REASON_DRAINING, "the request was aborted")


@mutant("aborted_embeddings_run_on", kills=("EMB-07", "INF-13/waiting"))
class AbortedEmbeddingsRunOn(Reference):
    """Their callers are told, and their slots are taken until all is computed, or until a second abort."""

    def abort(self, job: Job) -> None:
        if isinstance(job, EmbeddingJob) and job.open_choices:
            self.send(job, self.cancelled(job.choices[0]))
            job.left *= 1000
        else:
            super().abort(job)

    def ended(self, job: Job) -> None:
        if not (isinstance(job, EmbeddingJob) and job.left > 0):
            super().ended(job)


@mutant("embeds_unadvertised", kills="ERR-17/embeddings")
class EmbedsUnadvertised(Reference):
    settings = replace(Settings(), capabilities=("seed",))

    def allows(self, capability: str) -> bool:
        return capability == "embeddings" or super().allows(capability)


@mutant("embed_counts_equal_inputs_once", kills="EMB-06")
class EmbedCountsEqualInputsOnce(Reference):
    def embedded_tokens(self, inputs: Sequence[Sequence[int]]) -> int:
        return sum(map(len, set(map(tuple, inputs))))


@mutant("embeddings_have_ids_of_their_own", kills="ABO-06")
class EmbeddingsHaveIdsOfTheirOwn(Reference):
    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        name = request.request_id
        request.request_id = f"{name[:120]}.embed" if name in self.live else name
        response = await super().embed(request, call)
        response.request_id = name
        return response


@mutant("inputs_may_come_behind_their_abort", kills="ABO-11/embed")
class InputsMayComeBehindTheirAbort(Reference):
    """Only what generates is remembered by its id."""

    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        if request.request_id in self.aborted_early:
            self.aborted_early.remove(request.request_id)
        return await super().embed(request, call)


@mutant("load_is_of_those_that_generate", kills="EMB-07")
class LoadIsOfThoseThatGenerate(Reference):
    def load(self) -> pb.Load:
        load = super().load()
        running = [job for job in self.running if not isinstance(job, EmbeddingJob)]
        waiting = [job for job in self.waiting if not isinstance(job, EmbeddingJob)]
        load.running = sum(len(self.with_slots(job)) for job in running)
        load.waiting = len(waiting)
        load.waiting_tokens = sum(len(job.request.token_ids) for job in waiting)
        return load

"""Embeddings of the reference: a direction per token, summed and brought to length 1."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.service import Answer, Call, Service

SIZE = 16
INPUTS_A_STEP = 4
MOST_INPUTS = 2048
MOST_BYTES = 4_000_000
ONE_TOKEN = pb.PreprocessedRequest(
    token_ids=[0], stop_conditions=pb.StopConditions(max_tokens=1), bypass_prefix_cache=True
)
"""What a request to embed is to the queue, the slots and the KV blocks."""


@dataclass(eq=False, slots=True)
class EmbeddingJob(Job):
    """A request to embed, of which so many inputs are `left`."""

    left: int = 0


class Embeddings(Service):
    """Serves EmbeddingService."""

    def parts(self) -> dict[str, Answer]:
        """With Embed."""
        return {**super().parts(), "EmbeddingService.Embed": self.embed}

    async def embed(self, request: pb.EmbedRequest, call: Call) -> pb.EmbedResponse:
        """Check, admit, and one vector per input when it had its turn."""
        self.check_state()
        self.check_embed(request)
        self.check_abort(request.request_id)
        inputs = [list(each.token_ids) for each in request.request.token_ids]
        job = EmbeddingJob(request.request_id, ONE_TOKEN, 0, call.deadline, left=len(inputs))
        job.choices = [Choice(job, 0)]
        self.admit(job)
        try:
            await self.embedded(job)
        finally:
            self.ended(job)
        size = request.request.dimensions if request.request.HasField("dimensions") else SIZE
        tokens = self.embedded_tokens(inputs)
        output = pb.EmbeddingsEngineOutput(prompt_tokens=tokens, total_tokens=tokens)
        for vector in self.vectors(inputs):
            output.embeddings.add(values=self.shortened(vector, size))
        return pb.EmbedResponse(output=output, request_id=request.request_id)

    async def embedded(self, job: Job) -> None:
        """Wait until all inputs have had their turn; the only output there can be is that of an abort."""
        async for _ in self.outputs(job):
            raise Refusal(pb.ERROR_REASON_CANCELLED, "the request was aborted")

    def advance_job(self, job: Job) -> None:
        """Inputs are for the next step as well; anything else has its tokens."""
        if not isinstance(job, EmbeddingJob):
            super().advance_job(job)
            return
        job.left -= INPUTS_A_STEP
        if job.left <= 0:
            self.finish(job)

    def embedded_tokens(self, inputs: Sequence[Sequence[int]]) -> int:
        """Tokens of all inputs."""
        return sum(map(len, inputs))

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[list[float]]:
        """The model's own vectors, in the order of the inputs."""
        return [self.vector(tokens) for tokens in inputs]

    def vector(self, tokens: Sequence[int]) -> list[float]:
        """The vector of one input."""
        sums = [0.0] * SIZE
        for place, token in enumerate(tokens):
            draw = random.Random(hash((place, token))).uniform
            sums = [value + draw(-1, 1) for value in sums]
        return self.normalised(sums)

    def normalised(self, vector: Sequence[float]) -> list[float]:
        """The same direction, length 1."""
        length = math.hypot(*vector)
        return [value / length for value in vector]

    def shortened(self, vector: Sequence[float], size: int) -> list[float]:
        """Its first numbers, brought to length 1 again."""
        return self.normalised(vector[:size]) if size < SIZE else list(vector)

    def check_embed(self, request: pb.EmbedRequest) -> None:
        """Raise Refusal for the first thing that is wrong."""
        self.require("embeddings")
        self.check_revision(request.client_revision)
        self.check_request_id(request.request_id)
        self.check_model(request.request.model)
        if request.request.HasField("dimensions") and not 1 <= request.request.dimensions <= SIZE:
            raise invalid("dimensions", "is out of range", request.request.dimensions, f"1 to {SIZE}")
        if not request.request.token_ids:
            raise invalid("token_ids", "has no inputs", 0, "at least 1")
        self.check_inputs(len(request.request.token_ids), len(self.vector([0])))
        for place, each in enumerate(request.request.token_ids):
            self.check_input(f"token_ids[{place}]", each.token_ids)

    def check_inputs(self, count: int, size: int) -> None:
        """As many as have room in one answer with vectors of so many numbers."""
        most = min(MOST_INPUTS, MOST_BYTES // (4 * size + 16))
        if count > most:
            raise invalid("token_ids", "are too many for one answer", count, f"at most {most}")

    def check_input(self, path: str, tokens: Sequence[int]) -> None:
        """One input fits the window and has known ids."""
        if not tokens:
            raise invalid(path, "is empty", 0, "at least one id")
        window = self.config.context_length
        if len(tokens) > min(window, self.config.limits.max_prompt_tokens or window):
            raise Refusal(pb.ERROR_REASON_CONTEXT_EXCEEDED, f"{path}: does not fit the window", field=path)
        if max(tokens) >= self.config.vocab_size:
            raise invalid(path, "is not in the vocabulary", max(tokens), f"below {self.config.vocab_size}")

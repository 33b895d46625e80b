"""What vLLM is asked for vectors, and what a caller gets of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.inputs.engine import tokens_input
from vllm.pooling_params import PoolingParams

from enginewire import v1 as pb
from enginewire.server.engines.guides.messages import first_line
from enginewire.server.failures import InvalidRequest
from enginewire.vllm_engine.answers.answer import Answer
from enginewire.vllm_engine.facts import EMBED
from enginewire.vllm_engine.requests.refusals import REFUSALS

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.input_processor import InputProcessor


@dataclass(frozen=True, slots=True)
class Embedder:
    """How a model embeds: vectors of `size` numbers, which vLLM brings to length 1 if `normalizes`."""

    processor: InputProcessor
    size: int
    normalizes: bool

    @classmethod
    def of(cls, processor: InputProcessor) -> Embedder:
        """As vLLM has it of the model folder and of its arguments."""
        model = processor.model_config
        return cls(processor, model.embedding_size, model.pooler_config.use_activation is not False)

    def build(self, message: pb.PreprocessedEmbeddingRequest, answer: Answer) -> list[EngineCoreRequest]:
        """A request of vLLM's for each input. Raises InvalidRequest for what vLLM refuses."""
        arrival, priority = time.time(), answer.context.routing.priority
        try:
            return [
                self.processor.process_inputs(
                    choice.name,
                    tokens_input(list(each.token_ids)),
                    PoolingParams(task=EMBED),
                    (EMBED,),
                    arrival_time=arrival,
                    priority=priority,
                    data_parallel_rank=answer.rank,
                )
                for each, choice in zip(message.token_ids, answer.choices, strict=True)
            ]
        except REFUSALS as error:
            raise InvalidRequest(f"vLLM refuses the request: {first_line(error)}") from error

    def output(self, message: pb.PreprocessedEmbeddingRequest, answer: Answer) -> pb.EmbeddingsEngineOutput:
        """Of an answer that has all its vectors."""
        size = message.dimensions if message.HasField("dimensions") else self.size
        vectors = [shortened(choice.vector, size, self.normalizes) for choice in answer.choices]
        return pb.EmbeddingsEngineOutput(
            embeddings=[pb.Embedding(values=vector) for vector in vectors],
            prompt_tokens=answer.prompt_tokens,
            total_tokens=answer.prompt_tokens,
        )


def shortened(vector: Sequence[float], size: int, normalizes: bool) -> Sequence[float]:
    """The first numbers of a vector. vLLM does it only where the model was trained for it."""
    if size == len(vector):
        return vector
    first = vector[:size]
    length = math.hypot(*first) if normalizes else 1.0
    return [number / length for number in first] if length else first

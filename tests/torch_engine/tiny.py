"""Tiny random models, a request builder, and a core that is driven step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import transformers

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import EngineError
from enginewire.server.validation.generate import check_preprocessed
from enginewire.torch_engine.core import EngineCore
from enginewire.torch_engine.frontend.capabilities import engine_config
from enginewire.torch_engine.loading.warm_up import LoadedEngine
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.requests.limits import RequestLimits
from enginewire.torch_engine.requests.reader import RequestReader
from enginewire.torch_engine.requests.sequence import Request
from enginewire.torch_engine.work.outbox import CoreOutputs

VOCAB = 199
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Wide weights keep the best two logits apart, so that rounding cannot swap them.
    "initializer_range": 0.4,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(
        **SHAPE, rope_parameters=LLAMA3, attention_bias=True, mlp_bias=True
    ),
    "qwen2": lambda: transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True, **QWEN_WINDOW),
    "qwen3": lambda: transformers.Qwen3Config(**SHAPE, head_dim=24),
    "mistral": lambda: transformers.MistralConfig(**SHAPE, sliding_window=9),
}
FAMILIES = tuple(CONFIGS)


@dataclass
class Answer:
    """Everything one request delivered."""

    outputs: list[pb.LLMEngineOutput] = field(default_factory=list)
    tokens: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    error: EngineError | None = None
    num_resumed: dict[int, int] = field(default_factory=dict)

    @property
    def terminals(self) -> list[pb.LLMEngineOutput]:
        return [out for out in self.outputs if out.finish_reason != pb.FINISH_REASON_UNSPECIFIED]

    @property
    def logprobs(self) -> list[pb.Logprobs]:
        return [out.logprobs for out in self.outputs if out.HasField("logprobs")]


class CoreUnderTest:
    """A loaded engine driven step by step in this thread. It gets what the shell would let through."""

    def __init__(self, loaded: LoadedEngine, seed: int = 0, *, prefix_caching: bool = True) -> None:
        self.loaded = loaded
        self.core: EngineCore = loaded.core
        capacity = loaded.core.scheduler.pool.capacity
        limits = RequestLimits(
            loaded.config.vocab_size,
            loaded.context_length,
            capacity,
            takes_any_length=loaded.core.scheduler.takes_any_length,
            thinking=loaded.thinking,
            embedding_width=loaded.embedding_width,
            prefix_caching=prefix_caching,
        )
        self.reader = RequestReader(limits, loaded.defaults, seed)
        self.config = engine_config(TorchEngineOptions(model="tiny"), loaded, limits)
        # Guides are compiled before a request reaches a core, so that these tests have no grammar library.
        self.config.capabilities.guided_modes[:] = pb.GuidedMode.values()
        self.answers: dict[GenerateContext, Answer] = {}
        self.handed_over: list[tuple[Request, memoryview]] = []
        self.adapters: dict[str, Adapter] = {}
        self.vectors: dict[GenerateContext, list[float]] = {}
        self._serial = 0

    def add(
        self, request: pb.PreprocessedRequest, deadline: float | None = None, adapter: str | None = None
    ) -> GenerateContext:
        check_preprocessed(request, self.config)
        self._serial += 1
        context = GenerateContext(f"r{self._serial}", deadline)
        resumed = {choice.index: len(choice.generated_token_ids) for choice in request.resume.choices}
        self.answers[context] = Answer(num_resumed=resumed)
        chosen = self.adapters[adapter] if adapter else None
        self.core.add(self.reader.read(request, context, float(self._serial), chosen))
        return context

    def add_input(self, token_ids: Seq[int]) -> GenerateContext:
        """Queue an input to embed; `vectors` has what becomes of it."""
        assert self.loaded.embedding is not None
        self._serial += 1
        context = GenerateContext(f"i{self._serial}")
        self.core.add(self.reader.read_input(token_ids, self.loaded.embedding.pooling, context, self._serial))
        return context

    def preempt_one(self) -> None:
        """Take the least urgent sequence its blocks: a window may leave room enough for all of them."""
        scheduler = self.core.scheduler
        scheduler._preempt(scheduler.running[-1])

    @property
    def num_failed_batches(self) -> int:
        """Batches that were computed again row by row, which would hide a mistake."""
        return sum(method.num_failed for method in self.core.statistics.methods.values())

    def step(self) -> None:
        self.core.step()
        self._collect(self.core.take_outputs())

    def run(self) -> None:
        while self.core.has_work:
            self.step()
        assert self.core.scheduler.pool.num_used == 0
        assert not self.core.live.contexts

    def answer(self, request: pb.PreprocessedRequest, adapter: str | None = None) -> Answer:
        context = self.add(request, adapter=adapter)
        self.run()
        return self.answers[context]

    def _collect(self, step: CoreOutputs) -> None:
        columns = zip(step.contexts, step.indexes, step.positions, step.token_ids, strict=True)
        for context, index, position, token in columns:
            tokens = self.answers[context].tokens[index]
            assert position == self._num_known(context, index)
            tokens.append(token)
        for context, output in step.outputs:
            answer = self.answers[context]
            assert output.first_output_position == self._num_known(context, output.index)
            answer.tokens[output.index] += output.token_ids
            answer.outputs.append(output)
        for context, error in step.failures:
            assert self.answers[context].error is None, "a request failed twice"
            self.answers[context].error = error
        self.handed_over += step.handed_over
        self.vectors.update(step.vectors)

    def _num_known(self, context: GenerateContext, index: int) -> int:
        answer = self.answers[context]
        return answer.num_resumed.get(index, 0) + len(answer.tokens[index])


def greedy(prompt: Seq[int], max_tokens: int, n: int = 1) -> pb.PreprocessedRequest:
    """A greedy request that ignores EOS."""
    return pb.PreprocessedRequest(
        token_ids=prompt,
        sampling_options=pb.SamplingOptions(temperature=0.0, n=n),
        stop_conditions=pb.StopConditions(max_tokens=max_tokens, ignore_eos=True),
    )

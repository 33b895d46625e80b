"""From a request of the contract to those of vLLM, one per choice, which vLLM's `InputProcessor` checks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vllm.sampling_params import SamplingParams

from enginewire import v1 as pb
from enginewire.server.engines.answer import room_for, with_defaults
from enginewire.server.engines.guides.messages import first_line
from enginewire.server.failures import InvalidRequest, Unsupported
from enginewire.vllm_engine.answers.answer import Answer, Choice, endings_of, has_only_endings, is_guided
from enginewire.vllm_engine.kv_events.cached_blocks import PRIVATE
from enginewire.vllm_engine.logits import (
    DIVISOR,
    LATE_IDS,
    LATE_UNTIL,
    MOST_TEMPERATURE,
    RELUCTANT,
    has_processors,
)
from enginewire.vllm_engine.requests.guides import Guides
from enginewire.vllm_engine.requests.prompts import FIELD, Prompts
from enginewire.vllm_engine.requests.refusals import REFUSALS

if TYPE_CHECKING:
    from vllm.inputs.engine import EngineInput
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.input_processor import InputProcessor

SEED_STRIDE: Final = 0x9E3779B97F4A7C15
"""Between the seeds of the choices of a request: odd, so that no two are equal, and far from 1, so that
neighbouring seeds do not share choices."""
NUM_SEEDS: Final = 2**63
"""vLLM's runner for GPUs dies of a larger one, and -1 would mean none."""
LOW: Final = 2**32
"""Seeds of which torch's generator for processors takes all bits."""
TASKS: Final = ("generate",)


class RequestBuilder:
    """Turns messages into vLLM's requests.

    `config` is what the engine said at start; `adapter_of` gives the adapter of a name, None for no adapter.
    """

    def __init__(
        self,
        processor: InputProcessor,
        config: pb.EngineConfig,
        prompts: Prompts,
        guides: Guides,
        adapter_of: Callable[[str], LoRARequest | None],
    ) -> None:
        self._processor = processor
        self._adapter_of = adapter_of
        self._config = config
        self._prompts = prompts
        self._guides = guides
        self._has_processors = has_processors(processor.vllm_config)

    def build(self, message: pb.PreprocessedRequest, answer: Answer) -> list[EngineCoreRequest]:
        """Raises InvalidRequest or Unsupported for what vLLM refuses."""
        if answer.lists is not None and answer.lists.leave_nothing:
            raise answer.lists.nothing_left()
        self._check_values_are_the_models(message)
        guide = self._guides.of(message.sampling_options)
        stays_out = message.bypass_prefix_cache or message.is_probe
        # vLLM caches every block: a salt that nobody else has keeps them from being found.
        salt = PRIVATE + secrets.token_hex(16) if stays_out else message.cache_salt
        prompt = self._prompts.of(message)
        self._check_pictures_fit(message, len(prompt["prompt_token_ids"]))
        if salt:
            prompt["cache_salt"] = salt
        try:
            return [self._one(message, prompt, choice, guide) for choice in answer.choices]
        except REFUSALS as error:
            raise InvalidRequest(f"vLLM refuses the request: {first_line(error)}") from error

    def _check_pictures_fit(self, message: pb.PreprocessedRequest, prompt_tokens: int) -> None:
        """Raise for a prompt that is too long with its pictures, or whose log-probabilities have no place."""
        if prompt_tokens == len(message.token_ids):
            return
        if message.output_options.HasField("prompt_logprobs"):
            field = "output_options.prompt_logprobs"
            raise Unsupported(f"{field}: not beside pictures", field=field)
        if prompt_tokens >= (most := self._config.context_length):
            raise InvalidRequest(
                f"{FIELD}: with its pictures the prompt exceeds the context, got {prompt_tokens}, "
                f"allowed 1..{most - 1}",
                field=FIELD,
            )

    def _check_values_are_the_models(self, message: pb.PreprocessedRequest) -> None:
        """Raise Unsupported where vLLM would tell the log-probabilities of what a grammar has left."""
        if is_guided(message) and message.output_options.HasField("logprobs") and not self._has_processors:
            field = "output_options.logprobs"
            raise Unsupported(f"{field}: not beside a grammar here", field=field)

    def _one(
        self,
        message: pb.PreprocessedRequest,
        prompt: EngineInput,
        choice: Choice,
        guide: StructuredOutputsParams | None,
    ) -> EngineCoreRequest:
        params = self._sampling(message, choice.index, len(prompt["prompt_token_ids"]))
        arrival = time.time() - message.routing.priority_jump
        made = self._processor.process_inputs(
            choice.name,
            prompt,
            params,
            TASKS,
            arrival_time=arrival,
            lora_request=self._adapter_of(message.routing.lora_name),
            priority=message.routing.priority,
            data_parallel_rank=choice.answer.rank,
        )
        # What it adds of the model's own end of sequence is for requests that do not name theirs.
        made.sampling_params._all_stop_token_ids = set(params.stop_token_ids)
        made.sampling_params.structured_outputs = guide
        return made

    def _sampling(self, message: pb.PreprocessedRequest, index: int, prompt_tokens: int) -> SamplingParams:
        options = with_defaults(message.sampling_options, self._config.capabilities.default_sampling)
        output = message.output_options
        end_of_sequence, stops = endings_of(message, self._config)
        endings = end_of_sequence | stops
        room = min(room_for(message, self._config), self._config.context_length - prompt_tokens)
        # The token with that number may be the one that ends a choice; vLLM lets only the next one.
        barred = max(min(message.stop_conditions.min_tokens, room) - 1, 0)
        if has_only_endings(message, endings):
            endings, room, barred = frozenset(), barred + 1, 0
        extra = self._divisor(options.temperature)
        if barred and is_guided(message) and self._has_processors:
            # vLLM would bar them where the grammar leaves nothing else, too.
            extra |= {LATE_IDS: sorted(endings), LATE_UNTIL: barred}
            barred = 0
        bias = {entry.token_id: entry.bias for entry in options.logit_bias}
        if message.stop_conditions.ignore_eos:  # a guided request is left with some
            bias.update(dict.fromkeys(end_of_sequence, RELUCTANT))
        wants_prompt = index == 0 and output.HasField("prompt_logprobs")
        params = SamplingParams(
            temperature=min(options.temperature, MOST_TEMPERATURE),
            top_p=options.top_p,
            top_k=max(options.top_k, 0),
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            seed=_seed(options, index),
            max_tokens=room,
            min_tokens=barred,
            stop_token_ids=sorted(endings),
            ignore_eos=True,
            logprobs=output.logprobs if output.HasField("logprobs") else None,
            prompt_logprobs=output.prompt_logprobs if wants_prompt else None,
            logit_bias=bias or None,
            allowed_token_ids=list(dict.fromkeys(options.allowed_token_ids)) or None,
            detokenize=False,
            skip_clone=True,
            extra_args=extra or None,
        )
        if options.bad_words_token_ids:
            params._bad_words_token_ids = [list(word.token_ids) for word in options.bad_words_token_ids]
        return params

    def _divisor(self, temperature: float) -> dict[str, object]:
        """What is left to divide by after `MOST_TEMPERATURE`."""
        if temperature <= MOST_TEMPERATURE:
            return {}
        if not self._has_processors:
            field = "sampling_options.temperature"
            raise Unsupported(f"{field}: vLLM takes at most {MOST_TEMPERATURE:g} here", field=field)
        return {DIVISOR: temperature / MOST_TEMPERATURE}


def _seed(options: pb.SamplingOptions, index: int) -> int | None:
    """That of a choice: the caller's for choice 0, unless torch's generator for processors would cut it."""
    if not options.HasField("seed"):
        return None
    high, low = divmod((options.seed + index * SEED_STRIDE) % 2**64, LOW)
    # Of equal lower halves the upper ones make different ones.
    return (high * LOW + (low + high * SEED_STRIDE) % LOW) % NUM_SEEDS

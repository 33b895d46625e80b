"""Temperatures above 2, which the contract has and vLLM refuses.

vLLM divides by 2, the most that it takes, and this processor of logits by what is left. It runs within vLLM's
workers, which load it by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

if TYPE_CHECKING:
    from vllm.config import VllmConfig

MOST_TEMPERATURE: Final = 2.0
"""vLLM accepts no more."""
DIVISOR: Final = "enginewire.divisor"
"""Key of a request's `extra_args`."""


class HighTemperature(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Divides the logits of the requests that ask for it."""

    def is_argmax_invariant(self) -> bool:
        """The best token stays the best one, so it may come after vLLM's own temperature."""
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[[list[int], Any], Any] | None:
        """What a request needs: nothing, as a rule."""
        divisor = (params.extra_args or {}).get(DIVISOR)
        return None if divisor is None else lambda output_ids, logits: logits.div_(divisor)


def add_high_temperatures(config: VllmConfig) -> None:
    """Have the workers load the processor, where vLLM takes one: not beside a draft, nor in its V2 runner."""
    if config.speculative_config is None and not config.use_v2_model_runner:
        name = f"{HighTemperature.__module__}:{HighTemperature.__qualname__}"
        config.model_config.logits_processors = [*(config.model_config.logits_processors or []), name]


def has_high_temperatures(config: VllmConfig) -> bool:
    """True once it was added."""
    return any(
        HighTemperature.__qualname__ in str(each) for each in config.model_config.logits_processors or []
    )

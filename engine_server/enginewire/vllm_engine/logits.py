"""What the contract asks of logits and vLLM does not do: temperatures above 2, grammars that end early, and
log-probabilities beside grammars that are the model's own.

These processors run within vLLM's workers, which load them by their names; a request says in its `extra_args`
what it needs. vLLM takes none beside a draft model, and others in its V2 runner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor, LogitsProcessor
from vllm.v1.structured_output.utils import apply_grammar_bitmask

if TYPE_CHECKING:
    from vllm.config import VllmConfig

MOST_TEMPERATURE: Final = 2.0
"""vLLM accepts no more."""
RELUCTANT: Final = -1e6
"""Added to the logit of a token that is to be chosen only where nothing else is left."""
DIVISOR: Final = "enginewire.divisor"
LATE_IDS: Final = "enginewire.late_ids"
LATE_UNTIL: Final = "enginewire.late_until"

Change = Callable[[list[int], Any], Any]
"""Of the logits of one row, given the output so far."""


class HighTemperature(AdapterLogitsProcessor):  # type: ignore[misc]  # vLLM is not there where types are checked
    """Divides by what is left of a temperature when vLLM has divided by the most that it takes."""

    def is_argmax_invariant(self) -> bool:
        """The best token stays the best one, so it may come after vLLM's own temperature."""
        return True

    def new_req_logits_processor(self, params: SamplingParams) -> Change | None:
        """What a request needs: nothing, as a rule."""
        divisor = (params.extra_args or {}).get(DIVISOR)
        return None if divisor is None else lambda output_ids, logits: logits.div_(divisor)


class ReluctantEndings(AdapterLogitsProcessor):  # type: ignore[misc]  # the same
    """Keeps the ids that end a choice back for its first tokens, where its grammar leaves anything else."""

    def is_argmax_invariant(self) -> bool:
        """Another token becomes the best one."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Change | None:
        """What a request needs: nothing, as a rule."""
        given = params.extra_args or {}
        if LATE_UNTIL not in given:
            return None
        until, ids = given[LATE_UNTIL], given[LATE_IDS]

        def change(output_ids: list[int], logits: Any) -> Any:
            if len(output_ids) < until:
                logits[ids] += RELUCTANT
            return logits

        return change


class LateMasks(LogitsProcessor):  # type: ignore[misc]  # the same
    """Masks what a grammar bars behind the moment at which log-probabilities are taken; vLLM does it before.

    The worker's function that masks notes what it would do, and this does it, within the same step.
    """

    def __init__(self, vllm_config: VllmConfig, device: object, is_pin_memory: bool) -> None:
        from vllm.v1.worker import gpu_model_runner  # of which the CPU's is a kind

        self._mask: Callable[[Any], None] | None = None
        gpu_model_runner.apply_grammar_bitmask = self._note

    def _note(self, step: object, grammars: object, batch: object, logits: Any) -> None:
        self._mask = partial(apply_grammar_bitmask, step, grammars, batch)

    def apply(self, logits: Any) -> Any:
        """Of all rows of a step."""
        mask, self._mask = self._mask, None
        if mask is not None:
            mask(logits)
        return logits

    def is_argmax_invariant(self) -> bool:
        """Another token becomes the best one."""
        return False

    def update_state(self, batch_update: object) -> None:
        """The mask knows its rows by itself."""


PROCESSORS: Final = (HighTemperature, ReluctantEndings, LateMasks)


def add_processors(config: VllmConfig) -> None:
    """Have the workers load them, where vLLM takes any."""
    if config.speculative_config is None and not config.use_v2_model_runner:
        names = [f"{each.__module__}:{each.__qualname__}" for each in PROCESSORS]
        config.model_config.logits_processors = [*(config.model_config.logits_processors or []), *names]


def has_processors(config: VllmConfig) -> bool:
    """True once they were added."""
    return any(__name__ in str(each) for each in config.model_config.logits_processors or [])

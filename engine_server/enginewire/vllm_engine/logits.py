"""What the contract asks of logits and vLLM does not do: temperatures above 2, and grammars that end early.

These processors run within vLLM's workers, which load them by their names; a request says in its `extra_args`
what it needs. vLLM takes none beside a draft model, and others in its V2 runner.
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


PROCESSORS: Final = (HighTemperature, ReluctantEndings)


def add_processors(config: VllmConfig) -> None:
    """Have the workers load them, where vLLM takes any."""
    if config.speculative_config is None and not config.use_v2_model_runner:
        names = [f"{each.__module__}:{each.__qualname__}" for each in PROCESSORS]
        config.model_config.logits_processors = [*(config.model_config.logits_processors or []), *names]


def has_processors(config: VllmConfig) -> bool:
    """True once they were added."""
    return any(__name__ in str(each) for each in config.model_config.logits_processors or [])

"""Servers that say something about themselves that is not so."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from enginewire import v1 as pb
from enginewire.conformance.mutants import changed, mutant
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings
from enginewire.conformance.wire.foreign import health_types


@mutant("info_unimplemented", kills="INF-01")
class InfoUnimplemented(Reference):
    async def info(self) -> pb.GetEngineInfoResponse:
        raise Refusal(pb.ERROR_REASON_UNSUPPORTED, "not yet")


@mutant("info_empty", kills="INF-01")
class InfoEmpty(Reference):
    async def info(self) -> pb.GetEngineInfoResponse:
        return pb.GetEngineInfoResponse()


@changed(Reference.engine_config, "empty_model", kills="INF-02")
def empty_model(config: pb.EngineConfig) -> None:
    config.model = ""


@mutant("info_changes", kills=("INF-03", "INF-03/after-load"))
class InfoChanges(Reference):
    def __init__(self) -> None:
        super().__init__()
        self._answers = count()

    async def info(self) -> pb.GetEngineInfoResponse:
        info = await super().info()
        info.instance_id += f"-{next(self._answers)}"
        return info


@mutant("context_length_lies", kills="INF-04")
class ContextLengthLies(Reference):
    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        super().check_prompt(request)
        if len(request.token_ids) > self.config.context_length // 2:
            raise Refusal(pb.ERROR_REASON_CONTEXT_EXCEEDED, "token_ids: too long", field="token_ids")


@mutant("emits_oov_token", kills="INF-05")
class EmitsOovToken(Reference):
    def next_token(self, choice: Choice, logits: list[float]) -> int:
        if choice.job.request.sampling_options.temperature > 1 and len(choice.tokens) == 7:
            return self.config.vocab_size
        return super().next_token(choice, logits)


@changed(Reference.engine_config, "zero_means_unknown", kills="INF-06")
def zero_means_unknown(config: pb.EngineConfig) -> None:
    config.max_num_batched_tokens = 0


@changed(Reference.load, "kv_total_mismatch", kills="INF-07")
def kv_total_mismatch(load: pb.Load) -> None:
    load.kv_blocks_total += 1


@changed(Reference.load, "kv_used_over_total", kills="INF-07/under-load")
def kv_used_over_total(load: pb.Load) -> None:
    if load.running > 1:
        load.kv_blocks_used += load.kv_blocks_total


@mutant("running_over_limit", kills="INF-08", also="INF-07/seen")
class RunningOverLimit(Reference):
    def fits(self, job: Job) -> bool:
        return len(self.running) < 2 * self.settings.max_num_seqs


@mutant(
    "advertises_logprobs_but_rejects",
    kills=(
        *("INF-09", "INF-09/prompt-embeds", "LOG-01", "LOG-09"),
        *("MUX-07/queued", "MUX-08/queued", "MUX-12/queued"),
    ),
)
class AdvertisesLogprobsButRejects(Reference):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        super().check_gates(request)
        if request.output_options.HasField("logprobs"):
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, "no logprobs", field="output_options.logprobs")


@mutant("refuses_half_of_its_limit", kills="INF-09/limits")
class RefusesHalfOfItsLimit(Reference):
    settings = replace(Settings(), limits={"max_logit_bias": 64})

    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        super().check_limits(request)
        if len(request.sampling_options.logit_bias) > 32:
            raise Refusal(pb.ERROR_REASON_INVALID_REQUEST, "no", field="sampling_options.logit_bias")


@mutant("fewer_choices_than_said", kills="INF-09/limits")
class FewerChoicesThanSaid(Reference):
    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        super().check_limits(request)
        if request.sampling_options.n == self.config.limits.max_n:
            raise Refusal(pb.ERROR_REASON_INVALID_REQUEST, "no", field="sampling_options.n")


@mutant("nameless", kills="INF-10")
class Nameless(Reference):
    async def info(self) -> pb.GetEngineInfoResponse:
        info = await super().info()
        info.engine_version = ""
        return info


@mutant("same_instance_id", kills="INF-10/two-servers")
class SameInstanceId(Reference):
    def __init__(self) -> None:
        super().__init__()
        self.instance_id = "reference-1"


@changed(Reference.engine_config, "wildcard_endpoint", kills="INF-11")
def wildcard_endpoint(config: pb.EngineConfig) -> None:
    config.bootstrap_host, config.bootstrap_port = "0.0.0.0", 9000  # noqa: S104  # that is the mistake


@mutant("health_disagrees", kills="INF-12")
class HealthDisagrees(Reference):
    def health(self, service: str) -> int:
        return health_types.NOT_SERVING


@mutant("liveness_survives_cleanup", kills=("HLT-04/cleaned-up", "INF-12/ending"))
class LivenessSurvivesCleanup(Reference):
    def health(self, service: str) -> int:
        return health_types.SERVING if service == health_types.LIVENESS else super().health(service)


@mutant("silently_ignores_seed", kills="ERR-17/seed")
class SilentlyIgnoresSeed(Reference):
    settings = replace(Settings(), capabilities=("multiple_choices", "logprobs"))

    def allows(self, capability: str) -> bool:
        return capability == "seed" or super().allows(capability)


@mutant("silently_ignores_stop_strings", kills="ERR-17/stop_strings")
class SilentlyIgnoresStopStrings(Reference):
    settings = replace(Settings(), capabilities=("logprobs",))

    def found(self, choice: Choice) -> str:
        return ""

    def allows(self, capability: str) -> bool:
        return capability == "stop_strings" or super().allows(capability)


@mutant("refuses_without_a_field", kills=("ERR-17/best_of", "ERR-23"))
class RefusesWithoutAField(Reference):
    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        if request.sampling_options.HasField("best_of"):
            raise Refusal(pb.ERROR_REASON_UNSUPPORTED, "something is not supported")
        super().check_gates(request)


@changed(Reference.load, "running_counts_requests", kills="INF-08/counted")
def counts_requests(load: pb.Load) -> None:
    """However many choices they have: here one at most."""
    load.running = min(load.running, 1)


@mutant("held_blocks_are_cached_too", kills="INF-07/seen")
class HeldBlocksAreCachedToo(Reference):
    """Both counts are of all that is not empty."""

    def load(self) -> pb.Load:
        load = super().load()
        if load.running:
            load.kv_blocks_cached = load.kv_blocks_total
        return load


@mutant("counts_end_with_the_cleanup", kills="INF-13/seen", traffic="INF-12/ending")
class CountsEndWithTheCleanup(Reference):
    def load(self) -> pb.Load:
        load = super().load()
        if load.state == pb.ENGINE_STATE_STOPPED:
            load.step = load.requests_finished = load.tokens_generated = 0
        return load

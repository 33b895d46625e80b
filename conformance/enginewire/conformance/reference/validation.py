"""What the reference refuses before acceptance: tables of rules, and a method per kind of rule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.settings import Settings

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
FLOATS: Final = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)

RANGES: Final[dict[str, tuple[str, Callable[[float], bool]]]] = {
    "stop_conditions.max_tokens": ("at least 1", lambda value: value >= 1),
    "sampling_options.n": ("at least 1", lambda value: value >= 1),
    "sampling_options.best_of": ("at least 1", lambda value: value >= 1),
    "sampling_options.temperature": ("[0, 100]", lambda value: 0 <= value <= 100),
    "sampling_options.top_p": ("(0, 1]", lambda value: 0 < value <= 1),
    "sampling_options.top_k": ("at least -1", lambda value: value >= -1),
    "sampling_options.min_p": ("[0, 1]", lambda value: 0 <= value <= 1),
    "sampling_options.presence_penalty": ("[-2, 2]", lambda value: -2 <= value <= 2),
    "sampling_options.frequency_penalty": ("[-2, 2]", lambda value: -2 <= value <= 2),
    "sampling_options.repetition_penalty": ("(0, 10]", lambda value: 0 < value <= 10),
    "output_options.stream_interval": ("at least 1", lambda value: value >= 1),
    "bootstrap_info.bootstrap_port": ("1 to 65535", lambda value: 1 <= value <= 65535),
}

GATES: Final[dict[str, tuple[str, object]]] = {
    "prompt_embeds": ("prompt_embeds", None),
    "multi_modal_data": ("multi_modal_part_types", None),
    "mm_processor_kwargs": ("multi_modal_part_types", None),
    "resume": ("resume", None),
    "stop_conditions.stop": ("stop_strings", None),
    "stop_conditions.max_thinking_tokens": ("max_thinking_tokens", None),
    "sampling_options.n": ("multiple_choices", 1),
    "sampling_options.best_of": ("best_of", 1),
    "sampling_options.seed": ("seed", None),
    "sampling_options.use_beam_search": ("beam_search", False),
    "sampling_options.length_penalty": ("beam_search", 1.0),
    "sampling_options.min_p": ("min_p", 0.0),
    "sampling_options.presence_penalty": ("penalties", 0.0),
    "sampling_options.frequency_penalty": ("penalties", 0.0),
    "sampling_options.repetition_penalty": ("penalties", 1.0),
    "sampling_options.logit_bias": ("logit_bias", None),
    "sampling_options.allowed_token_ids": ("allowed_token_ids", None),
    "sampling_options.bad_words_token_ids": ("bad_words", None),
    "sampling_options.guided_decoding": ("guided_modes", None),
    "sampling_options.include_stop_str_in_output": ("stop_strings", None),
    "output_options.logprobs": ("logprobs", None),
    "output_options.prompt_logprobs": ("prompt_logprobs", None),
    "output_options.logprob_token_ids": ("selected_logprobs", None),
    "output_options.skip_special_tokens": ("stop_strings", None),
    "output_options.formatted_prompt": ("stop_strings", None),
    "output_options.return_tokens_as_token_ids": ("stop_strings", None),
    "routing.lora_name": ("lora", ""),
    "routing.priority": ("priority", 0),
    "routing.priority_jump": ("priority", 0.0),
    "routing.dp_rank": ("data_parallel", 0),
}
"""Field, the capability it needs, and the value that asks for nothing."""

ID_LISTS: Final = (
    "token_ids",
    "eos_token_ids",
    "stop_conditions.stop_token_ids",
    "stop_conditions.stop_token_ids_visible",
    "stop_conditions.stop_token_ids_hidden",
    "sampling_options.allowed_token_ids",
    "output_options.logprob_token_ids",
)

LIMITS: Final[dict[str, tuple[str, int]]] = {
    "sampling_options.n": ("max_n", 128),
    "sampling_options.best_of": ("max_n", 128),
    "output_options.logprobs": ("max_logprobs", 20),
    "output_options.prompt_logprobs": ("max_prompt_logprobs", 20),
    "eos_token_ids": ("max_stop_token_ids", 256),
    "stop_conditions.stop_token_ids": ("max_stop_token_ids", 256),
    "stop_conditions.stop_token_ids_visible": ("max_stop_token_ids", 256),
    "stop_conditions.stop_token_ids_hidden": ("max_stop_token_ids", 256),
    "output_options.logprob_token_ids": ("max_stop_token_ids", 256),
    "sampling_options.logit_bias": ("max_logit_bias", 1024),
    "sampling_options.allowed_token_ids": ("max_allowed_token_ids", 65536),
    "sampling_options.bad_words_token_ids": ("max_bad_words", 1024),
}
"""Field, the limit that may name another bound, and the contract's own bound."""

TEXTS: Final[dict[str, tuple[int, int]]] = {
    "annotations": (64, 1024),
    "stop_conditions.stop": (32, 1024),
    "extra_args": (1, 65536),
}
"""Field, how many there may be, and how many bytes each of them may have."""


class Validation:
    """Checks requests against `self.config`."""

    settings: Settings = Settings()

    def __init__(self) -> None:
        self.config = self.engine_config()

    def engine_config(self) -> pb.EngineConfig:
        """What the server says about itself."""
        return self.settings.config()

    def validate(self, request: pb.GenerateRequest) -> None:
        """Raise Refusal for the first thing that is wrong."""
        self.check_revision(request.client_revision)
        self.check_request_id(request.request_id)
        if not request.HasField("request"):
            raise invalid("request", "is missing", None, "a PreprocessedRequest")
        inner = request.request
        self.check_model(inner.model)
        self.check_role(inner)
        self.check_floats(inner)
        self.check_enums(inner)
        self.check_ranges(inner)
        self.check_gates(inner)
        self.check_rank(inner)
        self.check_limits(inner)
        self.check_prompt(inner)
        self.check_ids(inner)
        self.check_lists(inner)
        self.check_lengths(inner)
        self.check_sizes(inner)

    def check_revision(self, revision: int) -> None:
        """Refuse clients of another range."""
        if revision > pb.CONTRACT_REVISION:
            accepted = {"minimum_client_revision": "1", "maximum_client_revision": str(pb.CONTRACT_REVISION)}
            reason = pb.ERROR_REASON_REVISION_MISMATCH
            message = f"client_revision: not accepted, got {revision}, allowed 1 to {pb.CONTRACT_REVISION}"
            raise Refusal(reason, message, field="client_revision", metadata=accepted)

    def check_request_id(self, request_id: str) -> None:
        """Ids are short and plain."""
        if not REQUEST_ID.fullmatch(request_id):
            raise invalid("request_id", "is not an id", request_id, "1 to 128 of [A-Za-z0-9._:-]")

    def check_model(self, name: str) -> None:
        """Only the served model, by name or by default."""
        if name not in ("", self.config.model, *self.config.aliases):
            raise Refusal(pb.ERROR_REASON_MODEL_NOT_FOUND, "model: is not served here", field="model")

    def check_role(self, request: pb.PreprocessedRequest) -> None:
        """No half of a disaggregated request on an aggregated engine."""
        for field in ("prefill_result", "bootstrap_info"):
            if request.HasField(field):
                message = f"{field}: is for engines of another role"
                raise Refusal(pb.ERROR_REASON_ROLE_MISMATCH, message, field=field)

    def check_rank(self, request: pb.PreprocessedRequest) -> None:
        """Only ranks that are served here."""
        ranks = self.settings.ranks
        if request.routing.dp_rank >= ranks:
            raise invalid("routing.dp_rank", "is not served here", request.routing.dp_rank, f"below {ranks}")

    def check_floats(self, request: pb.PreprocessedRequest) -> None:
        """Every floating-point number is finite."""
        for path, number in floats_of(request):
            if not math.isfinite(number):
                raise invalid(path, "is not finite", number, "finite numbers")

    def check_enums(self, request: pb.PreprocessedRequest) -> None:
        """Enum numbers that the server does not know are read as 0."""

    def check_ranges(self, request: pb.PreprocessedRequest) -> None:
        """The table of ranges."""
        for path, (allowed, holds) in self.ranges().items():
            value = value_of(request, path)
            if isinstance(value, int | float) and not holds(value):
                raise invalid(path, "is out of range", value, allowed)

    def ranges(self) -> dict[str, tuple[str, Callable[[float], bool]]]:
        """Field, what is allowed in words, and the test."""
        return RANGES

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        """The table of capabilities."""
        for path, (capability, neutral) in GATES.items():
            value = value_of(request, path)
            if value is not None and value != neutral and not self.allows(capability):
                message = f"{path}: the capability {capability} is not offered here"
                raise Refusal(pb.ERROR_REASON_UNSUPPORTED, message, field=path)

    def allows(self, capability: str) -> bool:
        """True when a capability may be used; by rights when it is advertised."""
        return bool(getattr(self.config.capabilities, capability))

    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        """The table of bounds: numbers, and lengths of lists."""
        for path, (limit, usual) in LIMITS.items():
            limits = self.config.limits
            bound = getattr(limits, limit) if limits.HasField(limit) else usual  # type: ignore[arg-type]  # name
            value = value_of(request, path)
            size = value if isinstance(value, int | float) else len(value) if value else 0  # type: ignore[arg-type]
            if size > bound:
                raise invalid(path, "is above the limit", size, f"at most {bound}")

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        """A prompt that leaves room for output."""
        prompt, window = len(request.token_ids), self.config.context_length
        if not prompt:
            raise invalid("token_ids", "is empty", prompt, "at least one id")
        if prompt + max(request.stop_conditions.min_tokens, 1) > window:
            message = f"token_ids: do not fit the window, got {prompt} tokens, allowed {window - 1}"
            raise Refusal(pb.ERROR_REASON_CONTEXT_EXCEEDED, message, field="token_ids")

    def check_ids(self, request: pb.PreprocessedRequest) -> None:
        """Ids are below the vocabulary's size."""
        bound = self.config.vocab_size
        for path, token in ids_of(request):
            if token >= bound:
                raise invalid(path, "is not in the vocabulary", token, f"below {bound}")

    def check_lists(self, request: pb.PreprocessedRequest) -> None:
        """Lists with rules of their own."""
        options = request.sampling_options
        if options.HasField("top_k") and options.top_k > self.config.vocab_size:
            raise invalid("sampling_options.top_k", "is above the vocabulary", options.top_k, "its size")
        biased = [entry.token_id for entry in options.logit_bias]
        if len(set(biased)) != len(biased) or any(abs(entry.bias) > 100 for entry in options.logit_bias):
            raise invalid(
                "sampling_options.logit_bias", "is not valid", len(biased), "each id once, [-100, 100]"
            )
        if any(not words.token_ids for words in options.bad_words_token_ids):
            raise invalid("sampling_options.bad_words_token_ids", "has an empty entry", 0, "tokens")
        self.check_contradictions(options)
        resumed = [choice.index for choice in request.resume.choices]
        if resumed and (len(set(resumed)) != len(resumed) or max(resumed) >= max(options.n, 1)):
            raise invalid("resume.choices", "names a choice twice or none", resumed, "each choice once")
        if resumed and sum(choice.finished for choice in request.resume.choices) == max(options.n, 1):
            raise invalid("resume.choices", "are all finished", resumed, "one that is not")

    def check_contradictions(self, options: pb.SamplingOptions) -> None:
        """Something is allowed."""
        forbidden = {words.token_ids[0] for words in options.bad_words_token_ids if len(words.token_ids) == 1}
        allowed = set(options.allowed_token_ids) or set(range(self.config.vocab_size))
        if allowed <= forbidden:
            field = "sampling_options.bad_words_token_ids"
            raise invalid(field, "forbid all that is allowed", len(forbidden), "a token to choose")

    def check_lengths(self, request: pb.PreprocessedRequest) -> None:
        """min_tokens within max_tokens."""
        conditions = request.stop_conditions
        if conditions.HasField("max_tokens") and conditions.min_tokens > conditions.max_tokens:
            field = "stop_conditions.min_tokens"
            raise invalid(
                field, "is above max_tokens", conditions.min_tokens, f"at most {conditions.max_tokens}"
            )

    def check_sizes(self, request: pb.PreprocessedRequest) -> None:
        """The table of texts: how many there may be, and how many bytes each of them may have."""
        for path, (most, longest) in TEXTS.items():
            value = value_of(request, path) or ()
            texts = [value] if isinstance(value, bytes) else [text.encode() for text in value]  # type: ignore[attr-defined]  # strings
            if len(texts) > most or any(len(text) > longest for text in texts):
                raise invalid(path, "is too large", len(texts), f"at most {most} of {longest} bytes each")


def value_of(request: Message, path: str) -> object | None:
    """The value of a field, None when it is unset or empty."""
    *parents, name = path.split(".")
    for parent in parents:
        if not request.HasField(parent):
            return None
        request = getattr(request, parent)
    field = request.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not request.HasField(name):
        return None
    value: object = getattr(request, name)
    return value if field.has_presence or value else None


def floats_of(message: Message, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every floating-point number of a request with its path."""
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if field.cpp_type in FLOATS:
            yield from ((path, number) for number in (value if field.is_repeated else [value]))
        elif field.message_type and field.is_repeated:
            for number, entry in enumerate(value):
                yield from floats_of(entry, f"{path}[{number}].")
        elif field.message_type:
            yield from floats_of(value, f"{path}.")


def ids_of(request: pb.PreprocessedRequest) -> Iterator[tuple[str, int]]:
    """Every token id of a request with its path."""
    for path in ID_LISTS:
        ids = value_of(request, path)
        for number, token in enumerate(ids if ids else ()):  # type: ignore[arg-type,var-annotated]  # a list of ids
            yield f"{path}[{number}]", token
    for number, entry in enumerate(request.sampling_options.logit_bias):
        yield f"sampling_options.logit_bias[{number}].token_id", entry.token_id
    for number, words in enumerate(request.sampling_options.bad_words_token_ids):
        for place, token in enumerate(words.token_ids):
            yield f"sampling_options.bad_words_token_ids[{number}].token_ids[{place}]", token
    for number, choice in enumerate(request.resume.choices):
        for place, token in enumerate(choice.generated_token_ids):
            yield f"resume.choices[{number}].generated_token_ids[{place}]", token

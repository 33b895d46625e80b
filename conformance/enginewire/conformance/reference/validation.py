"""What the reference refuses before acceptance: a method per kind of rule, and rules from the contract."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from enginewire import v1 as pb
from enginewire.conformance.reference.refusal import Refusal, invalid
from enginewire.conformance.reference.settings import Settings
from enginewire.field_rules import FIELD_RULES, UNBOUNDED, Rule

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
FLOATS: Final = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)

RULES: Final = [rule for rule in FIELD_RULES.values() if not rule.is_in_list]
"""What the contract says about fields, those inside of lists aside."""

RANGES: Final = {rule.path: rule for rule in RULES if rule.has_range}
BEST_OF = "sampling_options.best_of"

GATES: Final = {rule.path: rule for rule in RULES if rule.capability}
LIMITS: Final = {rule.path: rule for rule in RULES if rule.limit}
ID_LISTS: Final = [rule.path for rule in RULES if rule.token_ids]

TEXTS: Final = [rule for rule in RULES if rule.json or rule.max_entry_bytes < UNBOUNDED]


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
        if name not in ("", self.config.model, self.config.served_model_name, *self.config.aliases):
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
        """Numbers are in range."""
        for path, rule in RANGES.items():
            value = value_of(request, path)
            if isinstance(value, int | float) and not rule.holds(value):
                raise invalid(path, "is out of range", value, rule.range)

    def check_gates(self, request: pb.PreprocessedRequest) -> None:
        """Only what is offered is used."""
        for path, rule in GATES.items():
            value = value_of(request, path)
            if path == BEST_OF and value == max(request.sampling_options.n, 1):
                continue  # as many as are asked for: nobody has to choose
            if value is not None and rule.asks(value) and not self.allows(rule.capability):
                message = f"{path}: the capability {rule.capability} is not offered here"
                raise Refusal(pb.ERROR_REASON_UNSUPPORTED, message, field=path)

    def allows(self, capability: str) -> bool:
        """True when a capability may be used; by rights when it is advertised."""
        return bool(getattr(self.config.capabilities, capability))

    def check_limits(self, request: pb.PreprocessedRequest) -> None:
        """Numbers, and lengths of lists, are within their bounds."""
        for path, rule in LIMITS.items():
            value, bound = value_of(request, path), self.bound(rule)
            size = value if isinstance(value, int | float) else len(value) if value else 0  # type: ignore[arg-type]
            if size > bound:
                raise invalid(path, "is above the limit", size, f"at most {bound}")

    def bound(self, rule: Rule) -> int:
        """The contract's, or the one in `Limits`."""
        return rule.most(self.config.limits)

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        """A prompt that leaves room for output."""
        prompt, window = len(request.token_ids), self.config.context_length
        if not prompt:
            raise invalid("token_ids", "is empty", prompt, "at least one id")
        if prompt + max(request.stop_conditions.min_tokens, 1) > window:
            message = f"token_ids: do not fit the window, got {prompt} tokens, allowed {window - 1}"
            raise Refusal(pb.ERROR_REASON_CONTEXT_EXCEEDED, message, field="token_ids")
        if prompt > (self.config.limits.max_prompt_tokens or prompt):
            raise invalid("token_ids", "are too many", prompt, f"{self.config.limits.max_prompt_tokens}")

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
        self.check_handed_in(request)

    def check_handed_in(self, request: pb.PreprocessedRequest) -> None:
        """No choice has more tokens than it may have."""
        room = self.config.context_length - len(request.token_ids)
        if request.stop_conditions.HasField("max_tokens"):
            room = min(room, request.stop_conditions.max_tokens)
        for number, choice in enumerate(request.resume.choices):
            if (count := len(choice.generated_token_ids)) > room:
                path = f"resume.choices[{number}].generated_token_ids"
                raise invalid(path, "are too many", count, f"at most {room}")

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
        """Texts: how many there may be, or how many bytes, and how many bytes in each of several."""
        for rule in TEXTS:
            value = value_of(request, rule.path) or ()
            entries = value if rule.field.is_repeated else ()
            longest = max((len(text.encode()) for text in entries), default=0)  # type: ignore[attr-defined]  # texts
            if self.size(value) > rule.bound or longest > rule.max_entry_bytes:
                raise invalid(rule.path, "is too large", len(value), f"at most {rule.bound}")  # type: ignore[arg-type]

    def size(self, value: object) -> int:
        """Bytes of a text, else how many there are of something."""
        return len(value.encode() if isinstance(value, str) else value)  # type: ignore[arg-type]  # has a length


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

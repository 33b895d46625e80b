"""Is this a request the engine may be given? Every rule of the contract, before acceptance.

`check_generate` takes a request and what the engine advertised, and raises an `EngineError` that names the
field, or returns. It changes nothing: values beyond the window are clamped by the engine. What the contract
says as data, `ruled_fields` finds. Knows nothing about queues, gRPC or a particular engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES, Rule
from enginewire.server.failures import (
    ContextExceeded,
    InvalidRequest,
    ModelNotFound,
    RevisionMismatch,
    RoleMismatch,
    Unsupported,
)
from enginewire.server.validation.bounds import Bounds
from enginewire.server.validation.fields import Sized, check_numbers, invalid, shown
from enginewire.server.validation.payloads import (
    check_guided,
    check_ids,
    check_multi_modal,
    check_prompt_embeds,
    check_resume,
    prompt_length,
)
from enginewire.server.validation.ruled_fields import Fields, ruled_fields
from enginewire.v1.json_text import MAX_BYTES, json_fault

NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
NAME_RULE = "1 to 128 characters of [A-Za-z0-9._:-]"
MAX_BAD_WORD_TOKENS = 8192

ANNOTATIONS, STOP, BIAS = (
    FIELD_RULES[path] for path in ("annotations", "stop_conditions.stop", "sampling_options.logit_bias.bias")
)


def check_generate(request: pb.GenerateRequest, config: pb.EngineConfig) -> None:
    """Return if the engine that advertised `config` may be given `request`, else raise an EngineError."""
    check_request_id(request.request_id)
    check_client_revision(request.client_revision)
    if not request.HasField("request"):
        raise InvalidRequest("request: must be set", field="request")
    check_preprocessed(request.request, config)


def check_request_id(request_id: str) -> None:
    """Raise InvalidRequest unless the id is a plain name."""
    if not NAME.fullmatch(request_id):
        raise invalid("request_id", "not a valid id", request_id, NAME_RULE)


def check_client_revision(revision: int) -> None:
    """Raise RevisionMismatch unless the client's revision is served. 0 is a client that does not say."""
    lowest, highest = pb.MINIMUM_CLIENT_REVISION, pb.CONTRACT_REVISION
    if revision and not lowest <= revision <= highest:
        raise RevisionMismatch(
            f"client_revision: not served, got {revision}, allowed {lowest}..{highest}",
            field="client_revision",
            metadata={"minimum_client_revision": str(lowest), "maximum_client_revision": str(highest)},
        )


def check_preprocessed(request: pb.PreprocessedRequest, config: pb.EngineConfig) -> None:
    """As `check_generate`, for the part that the engine sees."""
    bounds, fields = Bounds.of(config), ruled_fields(request)
    check_model(request.model, config)
    _check_role(request, config.role)
    _check_prompt(request, bounds)
    _check_ranges(fields.ranged)
    _check_capabilities(fields.gated, config.capabilities)
    _check_limits(fields.limited, bounds)
    _check_token_ids(fields.token_ids, bounds.vocab_size)
    _check_bad_words(request.sampling_options.bad_words_token_ids, bounds.vocab_size)
    check_numbers(request)
    if request.HasField("prompt_embeds"):
        check_prompt_embeds(request.prompt_embeds, bounds)
    _check_stop_conditions(request, bounds)
    _check_sampling(request.sampling_options, config)
    check_resume(request, bounds)
    check_routing(request.routing, config)
    check_multi_modal(request.multi_modal_data, config.capabilities.multi_modal_part_types)
    check_annotations(request.annotations)
    _check_json(fields.json)


def served_names(config: pb.EngineConfig) -> set[str]:
    """Names that PreprocessedRequest.model may use, adapters aside."""
    return {config.model, config.served_model_name or config.model, *config.aliases}


def check_model(name: str, config: pb.EngineConfig) -> None:
    """Raise ModelNotFound for a name that is neither of the model nor may be of an adapter."""
    if not name or name in served_names(config):
        return
    # Which adapters are loaded is the engine's to know.
    if not config.capabilities.lora or not NAME.fullmatch(name):
        here = shown(config.served_model_name or config.model)
        raise ModelNotFound(f"model: no such model here, got {shown(name)}, allowed {here}", field="model")


def _check_role(request: pb.PreprocessedRequest, role: pb.EngineRole.ValueType) -> None:
    is_handed_over = request.HasField("prefill_result")
    has_rendezvous = request.HasField("bootstrap_info")
    if is_handed_over and role != pb.ENGINE_ROLE_DECODE:
        raise _role_mismatch("prefill_result", "only a DECODE engine continues a hand-off")
    if has_rendezvous and role not in (pb.ENGINE_ROLE_DECODE, pb.ENGINE_ROLE_PREFILL):
        raise _role_mismatch("bootstrap_info", "only PREFILL and DECODE engines transfer KV")
    if request.is_probe:
        return  # It needs nothing but token ids, whatever the role.
    if role == pb.ENGINE_ROLE_DECODE and not (is_handed_over or has_rendezvous):
        raise _role_mismatch("prefill_result", "a DECODE engine needs a hand-off")
    if role == pb.ENGINE_ROLE_ENCODE and not request.multi_modal_data:
        raise _role_mismatch("multi_modal_data", "an ENCODE engine needs something to encode")


def _role_mismatch(path: str, reason: str) -> RoleMismatch:
    return RoleMismatch(f"{path}: {reason}", field=path)


def _check_prompt(request: pb.PreprocessedRequest, bounds: Bounds) -> None:
    count = len(request.token_ids)
    if request.HasField("prompt_embeds"):
        if count:
            raise invalid("prompt_embeds", "excludes token_ids", f"{count} token ids", "one of the two")
        return
    if not count:
        raise InvalidRequest("token_ids: must not be empty", field="token_ids")
    # Counted before any of them is looked at: checking megabytes of ids takes a while.
    most = min(bounds.context_length - 1, bounds.max_prompt_tokens)
    if count > most:
        reason = f"token_ids: exceeds the context, got {count} tokens, allowed 1..{most}"
        raise ContextExceeded(reason, field="token_ids")


def _check_ranges(fields: Fields) -> None:
    for rule, value in fields:
        if not rule.holds(value):
            raise invalid(rule.path, "out of range", value, rule.range)


def _check_capabilities(fields: Fields, capabilities: pb.Capabilities) -> None:
    for rule, value in fields:
        if rule.asks(value) and not getattr(capabilities, rule.capability):
            raise Unsupported(f"{rule.path}: needs the capability {rule.capability}", field=rule.path)


def _check_limits(fields: Fields, bounds: Bounds) -> None:
    for rule, value in fields:
        number, most = value if isinstance(value, int) else len(value), bounds.most(rule)
        if number > most:
            raise invalid(rule.path, "too many", number, f"at most {most}")


def _check_token_ids(fields: Fields, vocab_size: int) -> None:
    for rule, ids in fields:
        check_ids(rule.path, ids, vocab_size)


def _check_bad_words(words: Iterable[pb.TokenSequence], vocab_size: int) -> None:
    for i, word in enumerate(words):
        path = f"sampling_options.bad_words_token_ids[{i}].token_ids"
        count = len(word.token_ids)
        if not 0 < count <= MAX_BAD_WORD_TOKENS:
            raise invalid(path, "empty or too long", f"{count} ids", f"1..{MAX_BAD_WORD_TOKENS}")
        check_ids(path, word.token_ids, vocab_size)


def _check_stop_conditions(request: pb.PreprocessedRequest, bounds: Bounds) -> None:
    stop = request.stop_conditions
    path = "stop_conditions.min_tokens"
    if stop.HasField("max_tokens") and stop.min_tokens > stop.max_tokens:
        raise invalid(path, "above max_tokens", stop.min_tokens, f"0..{stop.max_tokens}")
    room = bounds.context_length - prompt_length(request)
    if stop.min_tokens > room:
        reason = f"{path}: exceeds the context, got {stop.min_tokens}, allowed 0..{room}"
        raise ContextExceeded(reason, field=path)
    _check_strings(STOP, stop.stop, shortest=1)


def _check_sampling(options: pb.SamplingOptions, config: pb.EngineConfig) -> None:
    capabilities = config.capabilities
    n = options.n if options.HasField("n") else 1
    if options.HasField("best_of"):
        path = "sampling_options.best_of"
        if options.best_of < n:
            raise invalid(path, "below n", options.best_of, f"at least {n}")
        if options.best_of > n and not capabilities.best_of:
            raise Unsupported(f"{path}: needs the capability best_of", field=path)
    if options.HasField("guided_decoding"):
        check_guided(options.guided_decoding, capabilities.guided_modes)
    _check_logit_bias(options.logit_bias, config.vocab_size)
    _check_something_is_left(options, config.vocab_size)


def _check_something_is_left(options: pb.SamplingOptions, vocab_size: int) -> None:
    """Lists that contradict each other would only show as a choice with nothing to choose from."""
    banned = {word.token_ids[0] for word in options.bad_words_token_ids if len(word.token_ids) == 1}
    allowed = options.allowed_token_ids or range(vocab_size)
    if banned and len(set(allowed)) <= len(banned) and banned.issuperset(allowed):
        name = "allowed_token_ids" if options.allowed_token_ids else "bad_words_token_ids"
        reason = "bad_words_token_ids forbid every token that is allowed"
        raise invalid(f"sampling_options.{name}", reason, f"{len(banned)} bad words", "a token to choose")


def _check_logit_bias(entries: Iterable[pb.LogitBias], vocab_size: int) -> None:
    seen: set[int] = set()
    for i, entry in enumerate(entries):
        path = f"sampling_options.logit_bias[{i}]"
        if entry.token_id >= vocab_size:
            raise invalid(f"{path}.token_id", "not in the vocabulary", entry.token_id, f"0..{vocab_size - 1}")
        if entry.token_id in seen:
            raise invalid(f"{path}.token_id", "named twice", entry.token_id, "each id once")
        if not BIAS.holds(entry.bias):
            raise invalid(f"{path}.bias", "out of range", entry.bias, BIAS.range)
        seen.add(entry.token_id)


def check_routing(routing: pb.RoutingHints, config: pb.EngineConfig) -> None:
    """Raise InvalidRequest for a rank, or ModelNotFound for an adapter, that cannot be here."""
    if routing.HasField("dp_rank"):
        first = config.data_parallel_start_rank
        last = first + max(config.data_parallel_size, 1) - 1
        if not first <= routing.dp_rank <= last:
            raise invalid("routing.dp_rank", "no such rank", routing.dp_rank, f"{first}..{last}")
    if routing.lora_name and not NAME.fullmatch(routing.lora_name):
        raise ModelNotFound("routing.lora_name: no such adapter here", field="routing.lora_name")


def check_annotations(annotations: Iterable[str]) -> None:
    """Raise InvalidRequest for too many annotations, or one that is too long."""
    _check_strings(ANNOTATIONS, annotations)


def _check_strings(rule: Rule, texts: Iterable[str], shortest: int = 0) -> None:
    count, longest = len(cast(Sized, texts)), rule.max_entry_bytes
    if count > rule.bound:
        raise invalid(rule.path, "too many", count, f"0..{rule.bound}")
    for i, text in enumerate(texts):
        size = len(text.encode())
        if not shortest <= size <= longest:
            raise invalid(f"{rule.path}[{i}]", "length", f"{size} bytes", f"{shortest}..{longest}")


def _check_json(fields: Fields) -> None:
    for rule, data in fields:
        must_be_object = rule.json == pb.JSON_KIND_OBJECT
        fault = json_fault(data, must_be_object=must_be_object)
        if fault:
            kind = "a JSON object" if must_be_object else "JSON"
            raise invalid(rule.path, fault, f"{len(data)} bytes", f"{kind} of 0..{MAX_BYTES} bytes")

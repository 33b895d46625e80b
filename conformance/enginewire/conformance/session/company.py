"""What is beside a request and changes nothing of what its check looks at: options, others, another way.

Real requests bring several, and a rule that holds for a plain request may be broken beside one of them. Every
request of a check gets the same company, so that what it compares stays comparable. Sends nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.session.requests import path_of, prompt
from enginewire.conformance.session.sizes import slots_of
from enginewire.field_rules import FIELD_RULES

MANY: Final = 20
"""Entries of a long list: more than the 16 for which some engines keep a fixed place."""

MINIMUM: Final = 2
"""Tokens, below which an engine may keep stop ids from being sampled."""

LISTS: Final = ("eos_token_ids", "stop_conditions.stop_token_ids_hidden", "sampling_options.logit_bias")
"""The fields that get a long list."""

MULTIPLEXED: Final = "multiplexed"
"""Each request travels over a multiplexed stream."""

FULL: Final = "a full engine"
"""All slots are taken by requests of others, and each request waits its turn."""

USED_ID: Final = "request_id"
"""Each request has the id of one that has ended."""

REVISION: Final = "client_revision"
"""Requests of the oldest clients and of the newest ones take turns."""

METADATA: Final = "metadata"
"""Each request brings much metadata that nobody knows, and some that cannot be read."""

UNKNOWN: Final = (("x-nobody-knows", "this" * 1152), ("traceparent", "no-trace"))
"""More than half of what a server may send."""

PROBE: Final = "is_probe"
"""Each request that says how many tokens it wants asks whether the engine really generates."""

UNREAD: Final = "fields that no engine reads"
"""Those of a newer contract, and hints that are for routers alone."""

MOST_SLOTS: Final = 64
"""More would keep the kit busy, not the engine."""

NEW_FIELD: Final = b"\xc0\xa9\x07\x01"
"""Of a newer contract, with number 15000."""

HINTS: Final = pb.PreprocessedRequest(
    routing=pb.RoutingHints(
        backend_instance_id=2**40,
        prefill_worker_id=2**40,
        decode_worker_id=2**40,
        allowed_worker_ids=[2**40],
        expected_output_tokens=1,
        routing_key="company",
        session_control=pb.SessionControl(session_id="company", action=pb.SESSION_ACTION_CLOSE),
    ),
    router_config_override=pb.RouterConfigOverride(router_temperature=1.5),
    router=pb.RouterParams(ttft_target=1.0, itl_target=1.0),
    agent_context=pb.AgentContext(agent_id="company", session_id="company"),
    migration_link=pb.TraceLink(trace_id=16 * "a1", span_id=8 * "a1"),
    request_timestamp_ms=1,
)
"""Long ago, to somewhere else, and of one session."""

WHOLE: Final = (pb.ENGINE_ROLE_UNSPECIFIED, pb.ENGINE_ROLE_AGGREGATED)
"""Roles of engines that answer alone."""

CHANCE: Final = 0.5

USUAL_BLOCK: Final = 16
"""Tokens of a block of the KV cache, where the target does not say."""

BLOCKS: Final = 2
"""That all prompts begin with, so that some of them are in a prefix cache."""

HOT: Final = 1.5
"""A temperature that changes most tokens where more than one may come."""

Join = Callable[[pb.PreprocessedRequest, "Company"], None]


@dataclass(frozen=True, slots=True)
class Company:
    """Which options come along; empty by default.

    `some_ids` are in the target's vocabulary, and so are those of `prefix`, a beginning for all prompts that
    leaves room for others. `window`: tokens that a request and its answer may have, 0 if unknown. `number`:
    the company's of a run.
    """

    members: tuple[str, ...] = ()
    some_ids: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    window: int = 0
    number: int = 0

    def joined(self, request: pb.GenerateRequest) -> pb.GenerateRequest:
        """The request with the company; what it says itself stays. Without company the same object."""
        if not self.members:
            return request
        accompanied = pb.GenerateRequest()
        accompanied.CopyFrom(request)
        for member in self.members:
            if member in JOINS:
                JOINS[member](accompanied.request, self)
        return accompanied

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each request brings beside its fields."""
        return UNKNOWN if METADATA in self.members else ()

    def without(self, *members: str) -> Company:
        """The same with fewer."""
        return replace(self, members=tuple(each for each in self.members if each not in members))

    def __str__(self) -> str:
        return ", ".join(self.members)


ALONE: Final = Company()


def draw(seed: int, number: int, config: pb.EngineConfig) -> Company:
    """Company `number` of a seed, of what the engine offers; never nobody.

    Who is not in an even one is in the next: whoever is judged in both has met everybody.
    """
    rng = random.Random(f"{seed}/company/{number // 2}")
    offered = [member for member in MEMBERS if _is_offered(member, config)]
    even = {member for member in offered if rng.random() < CHANCE}
    members = tuple(member for member in offered if (member in even) != bool(number % 2))
    members = members or (rng.choice(offered),)
    bounds = (FIELD_RULES[path].most(config.limits) for path in LISTS)
    size = max(config.vocab_size, 1)
    some_ids = rng.sample(range(size), min(MANY, size, *bounds))
    count = BLOCKS * (config.kv_cache_block_size or USUAL_BLOCK) + 1
    prefix = prompt(count, config.vocab_size, config.eos_token_ids, salt=rng.randrange(2**32))
    window = min(filter(None, (config.context_length, config.limits.max_prompt_tokens)), default=0)
    return Company(members, tuple(some_ids), tuple(prefix), window, number)


def _is_offered(member: str, config: pb.EngineConfig) -> bool:
    """As the rule of its field has it: the capability is there, and the limit leaves room."""
    if member in (MULTIPLEXED, FULL):
        # The others come over one stream as well: that is cheap.
        has_end = member == MULTIPLEXED or 0 < slots_of(config) <= MOST_SLOTS
        return config.capabilities.multiplexed and has_end and config.role in WHOLE
    if member in (USED_ID, METADATA, UNREAD, REVISION):
        return True
    if member in ("n", PROBE) and config.role not in WHOLE:
        return False  # what is handed over is of one choice, and probes are served in each role
    rule = FIELD_RULES[path_of(member)]
    is_declared = not rule.capability or getattr(config.capabilities, rule.capability)
    return is_declared and rule.most(config.limits) >= (2 if member == "n" else 1)


def _eos_token_ids(body: pb.PreprocessedRequest, company: Company) -> None:
    """They end nothing where EOS is ignored, unless a grammar ends with one."""
    is_guided = body.sampling_options.HasField("guided_decoding")
    if body.stop_conditions.ignore_eos and not is_guided and not body.eos_token_ids:
        body.eos_token_ids.extend(company.some_ids)


def _stop_token_ids_hidden(body: pb.PreprocessedRequest, company: Company) -> None:
    """They end nothing either where EOS is ignored."""
    conditions, is_guided = body.stop_conditions, body.sampling_options.HasField("guided_decoding")
    if conditions.ignore_eos and not is_guided and not conditions.stop_token_ids_hidden:
        conditions.stop_token_ids_hidden.extend(company.some_ids)


def _min_tokens(body: pb.PreprocessedRequest, company: Company) -> None:
    """Where only max_tokens ends a choice, it may as well be a minimum."""
    conditions = body.stop_conditions
    ends = conditions.stop_token_ids or conditions.stop_token_ids_visible or conditions.stop_token_ids_hidden
    if conditions.ignore_eos and not ends and not conditions.stop and not conditions.HasField("min_tokens"):
        conditions.min_tokens = min(conditions.max_tokens, MINIMUM)


def _stream_interval(body: pb.PreprocessedRequest, company: Company) -> None:
    if not body.output_options.HasField("stream_interval"):
        body.output_options.stream_interval = 4


def _logprobs(body: pb.PreprocessedRequest, company: Company) -> None:
    if not body.output_options.HasField("logprobs"):
        body.output_options.logprobs = 1


def _seed(body: pb.PreprocessedRequest, company: Company) -> None:
    """A greedy request has no use for it; what is sampled needs its own."""
    options = body.sampling_options
    if options.HasField("temperature") and options.temperature == 0 and not options.HasField("seed"):
        options.seed = 7


def _temperature(body: pb.PreprocessedRequest, company: Company) -> None:
    """However hot it is, of one token there is always the most probable."""
    options = body.sampling_options
    if options.HasField("temperature") and options.temperature == 0 and not options.HasField("top_k"):
        options.temperature, options.top_k = HOT, 1


def _top_p(body: pb.PreprocessedRequest, company: Company) -> None:
    """However small it is, the most probable token is left."""
    if _is_greedy(body.sampling_options) and not body.sampling_options.HasField("top_p"):
        body.sampling_options.top_p = 0.5


def _min_p(body: pb.PreprocessedRequest, company: Company) -> None:
    """The same."""
    if _is_greedy(body.sampling_options) and not body.sampling_options.HasField("min_p"):
        body.sampling_options.min_p = 0.5


def _is_greedy(options: pb.SamplingOptions) -> bool:
    return options.top_k == 1 or (options.HasField("temperature") and options.temperature == 0)


def _n(body: pb.PreprocessedRequest, company: Company) -> None:
    """A second choice; the first one is as it would be alone.

    A best_of below it would be a mistake.
    """
    options = body.sampling_options
    if not (options.HasField("n") or options.HasField("best_of") or body.HasField("resume")):
        options.n = 2


def _resume(body: pb.PreprocessedRequest, company: Company) -> None:
    """Nothing was generated before. An engine may refuse `prompt_logprobs` beside it, or leave them out."""
    if not (body.HasField("resume") or body.output_options.HasField("prompt_logprobs")):
        body.resume.CopyFrom(pb.Resume(choices=[pb.ResumedChoice()], attempt=1))


def _token_ids(body: pb.PreprocessedRequest, company: Company) -> None:
    """All prompts begin the same, where the window has room for that."""
    asked = len(company.prefix) + len(body.token_ids) + body.stop_conditions.max_tokens
    fits = body.stop_conditions.HasField("max_tokens") and (not company.window or asked <= company.window)
    if fits and body.token_ids and tuple(body.token_ids[: len(company.prefix)]) != company.prefix:
        body.token_ids[:] = [*company.prefix, *body.token_ids]


def _logit_bias(body: pb.PreprocessedRequest, company: Company) -> None:
    """Of nothing."""
    if not body.sampling_options.logit_bias:
        entries = [pb.LogitBias(token_id=token_id, bias=0.0) for token_id in company.some_ids]
        body.sampling_options.logit_bias.extend(entries)


def _priority(body: pb.PreprocessedRequest, company: Company) -> None:
    if not body.routing.HasField("priority"):
        body.routing.priority = -1


def _cache_salt(body: pb.PreprocessedRequest, company: Company) -> None:
    if not body.cache_salt:
        body.cache_salt = "company"


def _unread(body: pb.PreprocessedRequest, company: Company) -> None:
    """A server ignores what it does not know, wherever that is, and what is for others."""
    for message in (body, body.stop_conditions, body.output_options):
        message.MergeFromString(NEW_FIELD)
    hinted = pb.PreprocessedRequest()
    hinted.CopyFrom(HINTS)
    hinted.MergeFrom(body)
    body.CopyFrom(hinted)


def _annotations(body: pb.PreprocessedRequest, company: Company) -> None:
    """One that nobody knows is not answered."""
    if not body.annotations:
        body.annotations.append("nobody.knows:this")


def _is_probe(body: pb.PreprocessedRequest, company: Company) -> None:
    """It goes through the scheduler like any other; one that says nothing has one token."""
    if body.stop_conditions.HasField("max_tokens"):
        body.is_probe = True


JOINS: Final[Mapping[str, Join]] = MappingProxyType(
    {
        "eos_token_ids": _eos_token_ids,
        "min_tokens": _min_tokens,
        "stop_token_ids_hidden": _stop_token_ids_hidden,
        "stream_interval": _stream_interval,
        "logprobs": _logprobs,
        "seed": _seed,
        "temperature": _temperature,
        "top_p": _top_p,
        "min_p": _min_p,
        "n": _n,
        "resume": _resume,
        "token_ids": _token_ids,
        "logit_bias": _logit_bias,
        "priority": _priority,
        "cache_salt": _cache_salt,
        "annotations": _annotations,
        UNREAD: _unread,
        PROBE: _is_probe,
    }
)
"""Each by the field that it sets."""

MEMBERS: Final = (*JOINS, METADATA, REVISION, USED_ID, MULTIPLEXED, FULL)
"""All that may come along."""

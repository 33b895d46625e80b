"""What may hold for a request, or at a server, when a bug shows: what real bugs wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.proof.second_order.subjects import Subject
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.validation import ID_LISTS, value_of

Holds = Callable[[Subject], bool]

FEW: Final = 16
"""Entries for which some engines keep a fixed place."""
LONG: Final = 24
"""Tokens of an answer that is no short one."""
UNREAD: Final = 4
"""Outputs that wait for a reader who is slow."""
MANY_REQUESTS: Final = 40


class Gathering(Reference):
    """A correct server that does what stream_interval allows: up to so many tokens in one message."""

    async def outputs(self, job: Job) -> AsyncIterator[pb.LLMEngineOutput]:
        """In runs of each choice."""
        held: dict[int, pb.LLMEngineOutput] = {}
        async for output in super().outputs(job):
            run = held.setdefault(output.index, output)
            if run is not output:
                _append(run, output)
            if run.finish_reason or len(run.token_ids) >= job.request.output_options.stream_interval:
                yield held.pop(output.index)


def _append(run: pb.LLMEngineOutput, later: pb.LLMEngineOutput) -> None:
    position, text = run.first_output_position, run.text + later.text
    run.MergeFrom(later)
    run.first_output_position, run.text = position, text


@dataclass(frozen=True, slots=True)
class Condition:
    """`holds` says whether it is so for a subject. `in_runs`: only a server that gathers can have it."""

    name: str
    holds: Holds
    in_runs: bool = False


def correct_server(in_runs: bool) -> type[Reference]:
    """The reference, or the one that gathers."""
    return Gathering if in_runs else Reference


def _slots_are_full(server: Reference) -> bool:
    running = sum(len(job.open_choices) for job in server.running)
    return running >= server.settings.max_num_seqs


def _is_repeated(subject: Subject) -> bool:
    """Its prompt, or the first block of it, is in the prefix cache."""
    if subject.job:
        return subject.job.cached_tokens > 0
    request, size = subject.request, subject.server.settings.block_size
    key = (request.cache_salt, request.routing.lora_name, tuple(request.token_ids[:size]))
    return len(request.token_ids) > size and key in subject.server.cache


def _longest_list(request: pb.PreprocessedRequest) -> int:
    options = request.sampling_options
    lists = [value_of(request, path) for path in ID_LISTS if path != "token_ids"]
    sizes = [len(ids) for ids in lists if ids]  # type: ignore[arg-type]  # lists of ids
    return max(*sizes, len(options.logit_bias), len(options.bad_words_token_ids), 0, 0)


def _temperature(subject: Subject) -> float:
    options, server = subject.request.sampling_options, subject.server
    usual = server.config.capabilities.default_sampling.temperature
    return options.temperature if options.HasField("temperature") else usual


def _has_caller_stops(request: pb.PreprocessedRequest) -> bool:
    conditions = request.stop_conditions
    return bool(conditions.stop_token_ids or conditions.stop_token_ids_visible)


CONDITIONS: Final = (
    Condition("several_choices", lambda it: it.request.sampling_options.n > 1),
    Condition("later_choice", lambda it: bool(it.choice and it.choice.index)),
    Condition("in_runs", lambda it: it.request.output_options.stream_interval > 1, in_runs=True),
    Condition("long_list", lambda it: _longest_list(it.request) > FEW),
    Condition("long_answer", lambda it: bool(it.choice and len(it.choice.tokens) > LONG)),
    Condition("repeated_prompt", _is_repeated),
    Condition("queue_not_empty", lambda it: bool(it.server.waiting)),
    Condition("engine_full", lambda it: _slots_are_full(it.server)),
    Condition("beside_others", lambda it: len(it.server.live) > 1),
    Condition("after_many", lambda it: it.server.counters.requests_finished > MANY_REQUESTS),
    Condition("sampled", lambda it: _temperature(it) > 0),
    Condition("hot", lambda it: _temperature(it) > 1),
    Condition("seeded", lambda it: it.request.sampling_options.HasField("seed")),
    Condition("resumed", lambda it: it.request.HasField("resume")),
    Condition("multiplexed", lambda it: it.is_multiplexed),
    Condition("with_stop_ids", lambda it: _has_caller_stops(it.request)),
    Condition("own_eos", lambda it: bool(it.request.eos_token_ids)),
    Condition("with_minimum", lambda it: it.request.stop_conditions.min_tokens > 1),
    Condition("with_logprobs", lambda it: it.request.output_options.HasField("logprobs")),
    Condition("slow_reader", lambda it: bool(it.job and it.job.items.qsize() > UNREAD)),
)
"""Of the request where it says one, of the server otherwise."""

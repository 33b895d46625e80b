"""The `enginewire bench` command: make a load, measure the answers, print the table.

Exit codes: 0 every request was answered, 1 some were not or there is nothing to measure, 2 bad options.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from enginewire.backend.bench.grpc_targets import BackendTarget, EngineTarget, tokenized
from enginewire.backend.bench.options import BenchOptions, parse_goodput
from enginewire.backend.bench.plot import svg
from enginewire.backend.bench.report import as_json, table
from enginewire.backend.bench.run import RealClock, Run, Target
from enginewire.backend.bench.summary import Summary, summarize
from enginewire.backend.bench.timeline import Failed
from enginewire.backend.bench.workload import (
    InvalidDataset,
    Job,
    arrivals,
    dataset_jobs,
    random_token_jobs,
    random_word_jobs,
)
from enginewire.backend.commands.life import describe, run_until_signal
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.processes.sidecar import SidecarDied, engine_sidecar
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.calling.channel import open_channel
from enginewire.calling.trust import target_key, trust_of

EXIT_FAILED: Final = 1


async def bench(options: BenchOptions) -> int:
    """Measure and print; the exit code."""
    async with prepared(options) as (target, jobs):
        summary = await measured(options, target, jobs)
    print(as_json(summary) if options.json else table(summary), flush=True)
    if options.save_plot is not None:
        options.save_plot.write_text(svg(summary), encoding="utf-8")
    return EXIT_FAILED if summary.failed else 0


async def measured(options: BenchOptions, target: Target, jobs: Sequence[Job]) -> Summary:
    """The figures of one run, behind a few requests that nobody counts."""
    clock = RealClock()
    warmups = jobs[: options.num_warmups]
    await Run(target, clock, options.max_concurrency).measure(warmups, [0.0] * len(warmups))
    # What is there now stays; a collection in the middle would look like latency.
    gc.collect()
    gc.freeze()
    times = arrivals(len(jobs), options.request_rate, random.Random(options.seed))
    finished = await Run(target, clock, options.max_concurrency).measure(jobs, times)
    limits = parse_goodput(options.goodput)
    return summarize(finished.timelines, finished.duration, finished.peak_concurrency, limits)


@asynccontextmanager
async def prepared(options: BenchOptions) -> AsyncIterator[tuple[Target, list[Job]]]:
    """The target and what it will be asked. Raises Failed, InvalidDataset, RequestFailed and OSError."""
    if options.is_http:
        async with openai_target(options) as target:
            yield target, word_jobs(options)
    elif options.api == "backend":
        async with open_channel(options.grpc_target, trust=trust_of(options)) as channel:
            yield BackendTarget(channel, options), word_jobs(options)
    else:
        async with engine(options) as client:
            yield EngineTarget(client, options), await token_jobs(options, client)


@asynccontextmanager
async def openai_target(options: BenchOptions) -> AsyncIterator[Target]:
    """A server that speaks HTTP. Raises Failed."""
    import httpx2

    from enginewire.backend.bench.openai_target import OpenAiTarget, served_model

    limits = httpx2.Limits(max_connections=None)
    key = target_key(options)
    async with httpx2.AsyncClient(
        base_url=options.target,
        headers=[key.authorization] if key else None,
        limits=limits,
        timeout=options.timeout,
    ) as client:
        yield OpenAiTarget(client, options, options.model or await served_model(client))


@asynccontextmanager
async def engine(options: BenchOptions) -> AsyncIterator[EngineClient]:
    """An engine that is ready, perhaps one of our own. Raises RequestFailed and SidecarDied."""
    is_multiplexed = options.api == "multiplexed"
    if not options.launch:
        trust = trust_of(options)
        async with EngineClient(options.grpc_target, multiplexed=is_multiplexed, trust=trust) as client:
            await client.wait_ready(options.connect_timeout)
            yield client
        return
    async with (
        engine_sidecar(options.launch_command) as (process, target),
        EngineClient(target, multiplexed=is_multiplexed) as client,
    ):
        await process.unless_it_dies(client.wait_ready(options.connect_timeout))
        yield client


def word_jobs(options: BenchOptions) -> list[Job]:
    """For who tokenizes. Raises InvalidDataset and OSError."""
    if options.dataset_path is not None:
        return dataset_jobs(options.dataset_path, options.num_prompts, options.output_len, options.seed)
    return random_word_jobs(options.num_prompts, options.input_len, options.output_len, options.seed)


async def token_jobs(options: BenchOptions, client: EngineClient) -> list[Job]:
    """For an engine. Raises InvalidDataset, OSError and RequestFailed."""
    config = (await client.info()).config
    if options.dataset_path is None:
        avoided = frozenset(config.eos_token_ids)
        length, count = options.input_len, options.num_prompts
        return random_token_jobs(count, length, options.output_len, config.vocab_size, avoided, options.seed)
    jobs = word_jobs(options)
    if all(job.token_ids for job in jobs):
        return jobs
    tokenizer = BackendTokenizer.from_files(await client.tokenizer_files())
    try:
        return [tokenized(job, tokenizer) for job in jobs]
    except (ValueError, LookupError) as error:
        raise InvalidDataset(f"{options.dataset_path}: {error}") from error


def run(options: BenchOptions) -> int:
    """The exit code; what stops a measurement becomes one line."""
    try:
        return run_until_signal(bench(options))
    except RequestFailed as error:
        message = describe(error.failure)
    except (Failed, InvalidDataset, OSError, SidecarDied) as error:
        message = str(error)
    print(f"enginewire bench: {message}", file=sys.stderr)
    return EXIT_FAILED

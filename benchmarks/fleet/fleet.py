"""Many engines behind one backend: who gets which request, and what that is worth. A simulation.

    python benchmarks/fleet/fleet.py [--engines 64] [--policy all] [--callers 10000] [--turns 2]
        [--fault die|freeze] [--share 0.1] [--seed 7] [--json]

The backend is the real one: `Backend`, replay, `Endpoints`, the client and its streams, on channels to
simulated engines (`simulation`). Time is virtual, so a run takes seconds of processor time however
long it lasts. Every answer is compared with the one that an undisturbed engine gives, token for token.

Each caller asks `--turns` times, one after the other. A prompt is one of 2,000 beginnings of 256 to 2,048
tokens, drawn by Zipf's law, and 16 to 512 tokens of its own; the next turn goes on behind the answer. Answers
have 16 to 512 tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from simulation import virtual_time

CLOCK = virtual_time.install()

import argparse  # noqa: E402
import asyncio  # noqa: E402
import gc  # noqa: E402
import itertools  # noqa: E402
import json  # noqa: E402
import random  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from dataclasses import asdict, dataclass, field  # noqa: E402

from simulation.channel import Channel, Process  # noqa: E402
from simulation.engine import Speed, answer  # noqa: E402
from simulation.policies import POLICIES  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from enginewire import v1 as pb  # noqa: E402
from enginewire.backend.backend import Backend  # noqa: E402
from enginewire.backend.decoding.vocabulary import Vocabulary  # noqa: E402
from enginewire.backend.engines.choice.policy import Policy  # noqa: E402
from enginewire.backend.engines.choice.prefix_affinity import PrefixChain  # noqa: E402
from enginewire.backend.engines.choice.routing_hints import Hints  # noqa: E402
from enginewire.backend.engines.connection.client import EngineClient  # noqa: E402
from enginewire.backend.engines.endpoint import Endpoint  # noqa: E402
from enginewire.backend.engines.endpoints import Endpoints  # noqa: E402
from enginewire.backend.replay.retry import RetryPolicy  # noqa: E402
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer  # noqa: E402

NUM_BEGINNINGS, ZIPF = 2_000, 1.1
RAMP_SECONDS, FAULT_AT = 5.0, 4.0
# What the backend's pings take to notice that nobody answers: 10 s of silence, 5 s for the answer.
NOTICED_AFTER = 15.0


@dataclass
class Seen:
    """What callers have seen."""

    first_token: list[float] = field(default_factory=list)
    wrong: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    completed: int = 0


class Timed:
    """A policy, and how long it thinks."""

    def __init__(self, policy: Policy[Endpoint]) -> None:
        self._policy = policy
        self.seconds, self.count = 0.0, 0
        self.end, self.forget = policy.end, policy.forget

    def choose(self, free: Sequence[Endpoint], prefix: PrefixChain, hints: Hints) -> Endpoint:
        """See Policy."""
        begin = time.thread_time()
        chosen = self._policy.choose(free, prefix, hints)
        self.seconds += time.thread_time() - begin
        self.count += 1
        return chosen


class Callers:
    """Who asks, and what: the same for every policy."""

    def __init__(self, seed: int, count: int, turns: int) -> None:
        self._random = random.Random(seed)
        self._beginnings = [self._text(256, 2048) for _ in range(NUM_BEGINNINGS)]
        self._weights = list(itertools.accumulate(1 / rank**ZIPF for rank in range(1, NUM_BEGINNINGS + 1)))
        self.turns = turns
        self.plans = [
            (self._random.uniform(0, RAMP_SECONDS), self._beginning(), [self._turn() for _ in range(turns)])
            for _ in range(count)
        ]

    def _text(self, shortest: int, longest: int) -> list[int]:
        return self._random.choices(range(97, 123), k=self._random.randint(shortest, longest))

    def _beginning(self) -> list[int]:
        return self._random.choices(self._beginnings, cum_weights=self._weights)[0]

    def _turn(self) -> tuple[list[int], int]:
        return self._text(16, 512), self._random.randint(16, 512)

    async def ask_all(self, backend: Backend, seen: Seen) -> None:
        """Until everybody has all answers."""
        async with asyncio.TaskGroup() as group:
            for plan in self.plans:
                group.create_task(self._ask(backend, seen, *plan))

    async def _ask(
        self,
        backend: Backend,
        seen: Seen,
        begin: float,
        prompt: list[int],
        turns: list[tuple[list[int], int]],
    ) -> None:
        await asyncio.sleep(begin)
        for text, max_tokens in turns:
            prompt = [*prompt, *text]
            await ask(backend, seen, prompt, max_tokens)
            prompt += answer(prompt, 0, max_tokens)


async def ask(backend: Backend, seen: Seen, prompt: list[int], max_tokens: int) -> None:
    """One request, whose answer is looked at."""
    request = pb.PreprocessedRequest(token_ids=prompt)
    request.sampling_options.temperature = 0
    request.stop_conditions.max_tokens, request.stop_conditions.ignore_eos = max_tokens, True
    began, tokens = CLOCK.now, list[int]()
    async for item in backend.generate(request):
        if item.error is not None:
            reason = pb.ErrorReason.Name(item.error.reason)
            seen.failures[reason] = seen.failures.get(reason, 0) + 1
            return
        if item.data is not None and item.data.token_ids:
            if not tokens:
                seen.first_token.append(CLOCK.now - began)
            tokens += item.data.token_ids
    seen.completed += 1
    seen.wrong += tokens != answer(prompt, 0, max_tokens)


async def run(name: str, options: argparse.Namespace, callers: Callers) -> dict[str, object]:
    """The figures of one policy."""
    random.seed(options.seed)
    processes = [Process(number, Speed()) for number in range(options.engines)]
    policy, seen = Timed(POLICIES[name]()), Seen()
    clients = [
        EngineClient(each.target, multiplexed=False, open_channel=lambda *_, each=each: Channel(each))
        for each in processes
    ]
    began, cpu = CLOCK.now, time.process_time()
    async with Endpoints(clients, policy) as engines:
        await engines.wait_ready(60)
        tokenizer = Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode())
        backend = Backend(engines, Vocabulary(tokenizer), retry=RetryPolicy())
        spoil(processes, options)
        await callers.ask_all(backend, seen)
        retries = backend.activity.totals.retries
    seconds = CLOCK.now - began
    there = [each.engine for each in processes if not each.is_gone]
    work = [engine.busy for engine in there]
    firsts = statistics.quantiles(seen.first_token, n=100, method="inclusive")
    gc.collect()
    return {
        "policy": name,
        "engines": options.engines,
        "fault": options.fault,
        "requests": len(callers.plans) * callers.turns,
        "completed": seen.completed,
        "wrong": seen.wrong,
        "failures": seen.failures,
        "retries": retries,
        "seconds": round(seconds, 1),
        "output_tokens_per_s": round(sum(each.engine.output_tokens for each in processes) / seconds),
        "prefix_hit_rate": round(
            sum(each.engine.cached_tokens for each in processes)
            / sum(each.engine.prompt_tokens for each in processes),
            3,
        ),
        "busiest_to_mean": round(max(work) / statistics.mean(work), 2),
        "ttft_p50_s": round(firsts[49], 3),
        "ttft_p99_s": round(firsts[98], 3),
        "us_per_choice": round(policy.seconds / policy.count * 1e6),
        "cpu_ms_per_request": round((time.process_time() - cpu) / seen.completed * 1e3, 2),
    }


def spoil(processes: Sequence[Process], options: argparse.Namespace) -> None:
    """Later some of them die or freeze."""
    loop = asyncio.get_running_loop()
    for process in random.sample(processes, max(1, round(options.share * len(processes)))):
        if options.fault == "die":
            loop.call_later(FAULT_AT, process.die)
        elif options.fault == "freeze":
            loop.call_later(FAULT_AT, process.freeze, NOTICED_AFTER)


COLUMNS = (
    "policy", "completed", "wrong", "retries", "seconds", "output_tokens_per_s", "prefix_hit_rate",
    "busiest_to_mean", "ttft_p50_s", "ttft_p99_s", "us_per_choice", "cpu_ms_per_request",
)  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--policy", choices=["all", *POLICIES], default="all")
    parser.add_argument("--callers", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--fault", choices=["none", "die", "freeze"], default="none")
    parser.add_argument("--share", type=float, default=0.1, help="of the engines that die or freeze")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one line per policy")
    options = parser.parse_args()
    callers = Callers(options.seed, options.callers, options.turns)
    if not options.json:
        print(f"seed {options.seed}, {asdict(Speed())}")
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    # Nothing here is garbage that matters, and looking for it would take most of the time.
    gc.disable()
    for name in POLICIES if options.policy == "all" else [options.policy]:
        figures = virtual_time.run(CLOCK, run(name, options, callers))
        line = (
            json.dumps(figures)
            if options.json
            else "| " + " | ".join(str(figures[c]) for c in COLUMNS) + " |"
        )
        print(line, flush=True)


if __name__ == "__main__":
    main()

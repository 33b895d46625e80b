"""Every option of `enginewire bench`.

Names follow vLLM's `bench serve`, with short aliases. Knows nothing about how a load is made.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from enginewire.addresses import default_socket
from enginewire.calling.trust import TargetOptions, trust_of
from enginewire.options import OptionError, option

Api = Literal["multiplexed", "generate", "backend", "completions", "chat"]
HTTP_APIS: Final = frozenset({"completions", "chat"})
ENGINE_APIS: Final = frozenset({"multiplexed", "generate"})
HTTP_SCHEMES: Final = ("http://", "https://")
METRICS: Final = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions(TargetOptions):
    """Options of `enginewire bench`."""

    ENV_PREFIX: ClassVar[str] = "ENGINEWIRE_BENCH_"

    target: str = option(
        "",
        "what to measure: a gRPC name such as unix:/run/engine.sock, or a URL such as http://127.0.0.1:8000;"
        " the default socket of the engine or backend when not set",
        positional=True,
        heading="target",
    )
    api: Api = option(
        "multiplexed",
        "what it speaks: multiplexed and generate are the engine's own, backend is BackendService,"
        " completions and chat are OpenAI's over HTTP",
        heading="target",
    )
    launch: str = option(
        "", "arguments of an engine server to start on a private socket, measure, and end again"
    )
    model: str = option("", "model to ask for; the served one when not set")
    connect_timeout: float = option(
        60.0, "how long to wait until an engine is ready, loading included", unit="s", at_least=0.1
    )
    num_prompts: int = option(100, "requests to send", at_least=1, heading="load")
    request_rate: float | None = option(
        None,
        "mean number of arrivals per second, a Poisson process; all at once when not set",
        aliases=("--rate",),
        at_least=0.001,
    )
    max_concurrency: int | None = option(
        None,
        "most requests at the same time; no limit when not set",
        aliases=("--concurrency",),
        at_least=1,
    )
    num_warmups: int = option(1, "requests before the measured ones", at_least=0)
    timeout: float | None = option(
        None, "how long a request may take; forever when not set", unit="s", at_least=0.001
    )
    seed: int = option(0, "of arrivals and prompts: equal seeds make equal loads", at_least=0)
    dataset_path: Path | None = option(
        None,
        "file of prompts: JSON lines with prompt, messages or token_ids and perhaps max_tokens, or"
        " ShareGPT's JSON; invented prompts when not set",
        aliases=("--dataset",),
        heading="prompts",
    )
    input_len: int = option(128, "length of invented prompts; over HTTP in words", unit="tokens", at_least=1)
    output_len: int = option(128, "most tokens of an answer", unit="tokens", at_least=1)
    ignore_eos: bool = option(True, "generate all of them, past the end of the answer")
    temperature: float = option(0.0, "randomness; 0 always takes the most probable token", at_least=0)
    goodput: tuple[str, ...] = option(
        (),
        "what a good request keeps, in milliseconds, such as ttft:200 tpot:50 e2el:5000",
        heading="report",
    )
    json: bool = option(False, "print one line of JSON instead of the table")
    save_plot: Path | None = option(None, "write the distributions of the latencies as SVG")

    def __post_init__(self) -> None:
        parse_goodput(self.goodput)
        trust_of(self)
        if self.is_http != self.target.startswith(HTTP_SCHEMES) and (self.target or self.is_http):
            raise OptionError(f"--api {self.api}: needs {'an http://' if self.is_http else 'a gRPC'} target")
        if self.launch and self.api not in ENGINE_APIS:
            raise OptionError(f"--launch: --api {self.api} is not what an engine speaks")
        if self.launch and self.target:
            raise OptionError("--launch: a target is already given")

    @property
    def is_http(self) -> bool:
        """The target is a URL."""
        return self.api in HTTP_APIS

    @property
    def grpc_target(self) -> str:
        """The gRPC name to connect to."""
        return self.target or f"unix:{default_socket('backend' if self.api == 'backend' else 'engine')}"

    @property
    def launch_command(self) -> list[str]:
        """The arguments of the engine server to start; empty = start nothing."""
        return shlex.split(self.launch)


def parse_goodput(limits: tuple[str, ...]) -> dict[str, float]:
    """Milliseconds by metric. Raises OptionError."""
    parsed: dict[str, float] = {}
    for limit in " ".join(limits).split():
        metric, _, milliseconds = limit.partition(":")
        try:
            parsed[metric] = float(milliseconds)
        except ValueError:
            metric = ""
        if metric not in METRICS or not parsed[metric] > 0:
            raise OptionError(f"--goodput: expected {':MS, '.join(METRICS)}:MS, got {limit[:64]!r}")
    return parsed

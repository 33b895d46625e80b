"""Every option of the backend's commands: flag, environment variable, config key, default and meaning.

Names follow the flags and request fields people know from vLLM and OpenAI. Knows nothing about how the
options are carried out.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Literal

from enginewire.addresses import default_socket, listens_on_loopback, shown_socket, wants_tcp
from enginewire.backend.parsing.formats import ReasoningParserName, ToolParserName
from enginewire.options import Loaded, OptionError, computed, load, option
from enginewire.trusted_paths import user_id

DEFAULT_SERVE_PORT: Final = 50052
DEFAULT_HTTP_PORT: Final = 8000
DEFAULT_SMG_PORT: Final = 50053
STANDARD_STREAM: Final = Path("-")
MAX_UINT32: Final = 2**32 - 1
ROOT_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
DEFAULT_MESSAGE_BYTES: Final = 8 * 2**20

LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What every command of `enginewire-backend` needs to know: the engine, its tokenizer, patience."""

    # Not the engine's prefix: an engine that `launch` starts inherits this process's environment.
    ENV_PREFIX: ClassVar[str] = "ENGINEWIRE_BACKEND_"

    target: tuple[str, ...] = option(
        computed(lambda: (f"unix:{default_socket('engine')}",), "unix:<the engine's default --uds>"),
        "the engine: a gRPC name such as unix:/run/engine.sock, localhost:50051 or dns:///engine:50051;"
        " several for several engines of the same model",
        heading="engine",
    )
    socket_owner: str = option(
        "", "another user, besides this one and root, who may own an engine's Unix socket: a name or a number"
    )
    prefill_target: tuple[str, ...] = option(
        (),
        "an engine of --role prefill that computes the prompts for targets of --role decode; of several"
        " the one that has the least to do",
    )
    launch: str = option(
        "",
        "arguments of an engine server to start on a private socket, and again if it dies",
    )
    tokenizer: Path | None = option(
        None, "folder of the model's tokenizer; asked from the engine when not set"
    )
    multiplexed: bool = option(True, "send all requests over one stream when the engine can")
    validate_engine_decode: bool = option(
        False,
        "always decode here, and warn of an engine whose text or finish reason is not that of its tokens",
    )
    connect_timeout: float = option(
        60.0,
        "how long to wait until the engine is ready, loading included",
        unit="s",
        at_least=0.1,
        heading="patience",
    )
    timeout: float | None = option(
        None, "how long a request may take; forever when not set", unit="s", at_least=0
    )
    first_token_timeout: float = option(
        3600.0,
        "how long an engine may say nothing about a request before its first token, waiting in the queue"
        " included, until it is taken to have forgotten it; 0 is for ever",
        unit="s",
        at_least=0,
    )
    token_timeout: float = option(
        600.0,
        "how long an engine may say nothing about an answer that has begun, until it is taken to have"
        " forgotten it; 0 is for ever",
        unit="s",
        at_least=0,
    )
    replay: bool = option(
        True, "send a request again, or go on with its answer, when its engine is lost or refuses it for now"
    )
    log_level: LogLevel = option("warning", "least severe log line to print", heading="logs")

    def __post_init__(self) -> None:
        check_command(self.launch)
        user_id(self.socket_owner)

    @property
    def launch_command(self) -> list[str]:
        """The command line to start, split as a shell would; empty = start nothing."""
        return shlex.split(self.launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults(BackendOptions):
    """How to generate when a request does not say; None leaves the choice to the engine."""

    max_tokens: int | None = option(
        None,
        "most tokens to generate",
        unit="tokens",
        at_least=1,
        at_most=MAX_UINT32,
        heading="generation",
        contract="StopConditions.max_tokens",
    )
    min_tokens: int | None = option(
        None,
        "no stop before this many tokens",
        unit="tokens",
        at_least=0,
        at_most=MAX_UINT32,
        contract="StopConditions.min_tokens",
    )
    temperature: float | None = option(
        None,
        "randomness; 0 always takes the most probable token",
        at_least=0,
        at_most=100,
        contract="SamplingOptions.temperature",
    )
    top_p: float | None = option(
        None,
        "keep the most probable tokens that add up to this",
        at_least=0,
        at_most=1,
        contract="SamplingOptions.top_p",
    )
    top_k: int | None = option(
        None,
        "keep this many most probable tokens; 0 keeps all",
        at_least=-1,
        at_most=2**31 - 1,
        contract="SamplingOptions.top_k",
    )
    min_p: float | None = option(
        None,
        "drop tokens below this fraction of the best one's probability",
        at_least=0,
        at_most=1,
        contract="SamplingOptions.min_p",
    )
    seed: int | None = option(
        None, "makes the result repeatable", at_least=0, at_most=2**64 - 1, contract="SamplingOptions.seed"
    )
    n: int | None = option(
        None, "answers to generate", at_least=1, at_most=MAX_UINT32, contract="SamplingOptions.n"
    )
    stop: tuple[str, ...] = option((), "text that ends the answer", contract="StopConditions.stop")
    ignore_eos: bool = option(
        False, "go on after the end of the answer", contract="StopConditions.ignore_eos"
    )

    def __post_init__(self) -> None:
        # The zero-argument form finds no class in a dataclass with slots.
        BackendOptions.__post_init__(self)
        if self.top_p == 0:
            raise OptionError("--top-p must be above 0")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise OptionError("--min-tokens must not be above --max-tokens")
        if "" in self.stop:
            raise OptionError("--stop must not be empty: it would stop at once")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions(SamplingDefaults):
    """Options of `enginewire-backend generate`: one prompt in, its text streamed out."""

    prompt: str = option(
        "", "the question; read from standard input when not set", positional=True, heading="prompt"
    )
    chat: bool = option(True, "put the prompt into the model's chat template")
    system: str = option("", "instructions that come before the prompt in the chat template")
    json: bool = option(False, "print every item of the answer as a JSON line instead of its text")

    def __post_init__(self) -> None:
        SamplingDefaults.__post_init__(self)
        if self.system and not self.chat:
            raise OptionError("--system needs --chat: without a chat template there is no place for it")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonlOptions(SamplingDefaults):
    """Options of `enginewire-backend jsonl`: JSON lines in, annotated JSON lines out."""

    input: Path = option(
        STANDARD_STREAM,
        "file of requests, one JSON object per line; - is standard input",
        positional=True,
        heading="files",
    )
    output: Path = option(STANDARD_STREAM, "file for the answers; - is standard output")
    concurrency: int = option(64, "most requests at the same time", at_least=1)
    max_line_bytes: int = option(8 * 2**20, "longest line of the input", unit="bytes", at_least=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(BackendOptions):
    """Options of `enginewire-backend serve`: BackendService over gRPC, and the other faces.

    gRPC listens on TCP when `port` is set, else on the Unix socket `uds`; the others only when asked.
    """

    uds: Path = option(
        computed(lambda: default_socket("backend"), shown_socket("backend")),
        "Unix socket to listen on, readable by its owner only",
        heading="address",
    )
    host: str = option(
        "127.0.0.1", f"listen on TCP at this host, at port {DEFAULT_SERVE_PORT} unless --port is set"
    )
    port: int | None = option(
        None, "listen on TCP at this port; 0 picks a free one and prints it", at_least=0, at_most=65535
    )
    allow_insecure: bool = option(
        False, "allow a host beyond loopback, where anyone can read prompts and send requests"
    )
    http_port: int | None = option(
        None,
        f"serve the OpenAI-compatible API over HTTP at this port, such as {DEFAULT_HTTP_PORT}; 0 picks a free"
        " one and prints it",
        at_least=0,
        at_most=65535,
    )
    http_host: str = option(
        "127.0.0.1", f"serve HTTP at this host, at port {DEFAULT_HTTP_PORT} unless --http-port is set"
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "name of this server in the Host header of HTTP, such as llm.example.org or *.example.org, beside"
        " addresses and localhost; * is any, as it is beyond loopback when not set",
    )
    allowed_origins: tuple[str, ...] = option(
        (), "origin of web pages that may use HTTP (CORS), such as https://chat.example.org; * is any"
    )
    root_path: str = option(
        "", "path below which a proxy in front serves the HTTP API, such as /llm, taken off by it or not"
    )
    served_model_name: tuple[str, ...] = option(
        (), "name of the model over HTTP in place of the engine's; all are accepted, the first is answered"
    )
    allow_runtime_lora_updating: bool = option(
        False, "let callers of HTTP load adapters from the engines' adapter folders and unload them"
    )
    tool_call_parser: ToolParserName = option(
        "auto",
        "how the model writes calls of tools; auto takes what its chat template shows, none refuses tools",
    )
    reasoning_parser: ReasoningParserName = option(
        "auto",
        "how the model marks its thinking; auto takes what its chat template shows, none leaves it as text",
    )
    smg_port: int | None = option(
        None,
        f"be a worker of the SMG gateway at this port, such as {DEFAULT_SMG_PORT}; 0 picks a free one and"
        " prints it",
        at_least=0,
        at_most=65535,
    )
    smg_host: str = option(
        "127.0.0.1", f"be a worker of SMG at this host, at port {DEFAULT_SMG_PORT} unless --smg-port is set"
    )
    reflection: bool = option(False, "serve gRPC reflection, for grpcurl and the like")
    max_message_bytes: int = option(
        DEFAULT_MESSAGE_BYTES,
        "largest gRPC message in both directions, and largest body of an HTTP request",
        unit="bytes",
        at_least=4096,
        at_most=2**31 - 1,
        heading="limits",
    )
    max_concurrent_streams: int = option(1024, "most open RPCs per connection", at_least=1, at_most=2**31 - 1)
    limit_concurrency: int = option(
        2048, "most open HTTP connections; further ones are refused as retryable", at_least=1, at_most=2**20
    )
    client_header_timeout: float = option(
        60.0, "how long the head of an HTTP request may take to arrive", unit="s", at_least=0.1
    )
    client_body_timeout: float = option(
        60.0, "how long the body of an HTTP request may take to arrive", unit="s", at_least=0.1
    )
    timeout_keep_alive: int = option(5, "how long an idle HTTP connection stays open", unit="s", at_least=1)
    slow_consumer_timeout: float = option(
        30.0,
        "how long the reader of an answer may take nothing before its request is aborted",
        unit="s",
        at_least=0.1,
    )
    shutdown_timeout: float = option(
        30.0, "how long running requests may go on after SIGTERM; 0 aborts them at once", unit="s", at_least=0
    )

    def __post_init__(self) -> None:
        BackendOptions.__post_init__(self)
        if self.root_path and not ROOT_PATH.fullmatch(self.root_path):
            raise OptionError("--root-path must begin with a slash and not end with one, such as /llm")
        for flag, host in (
            ("--host", self.host),
            ("--http-host", self.http_host),
            ("--smg-host", self.smg_host),
        ):
            if not self.allow_insecure and not listens_on_loopback(host):
                raise OptionError(
                    f"{flag}: whoever reaches a host beyond loopback could read prompts and send requests;"
                    " use 127.0.0.1 or a Unix socket, or say --allow-insecure"
                )


def load_serve(argv: Sequence[str] | None = None) -> ServeOptions:
    """The options of `serve`; exits with 2 and a message when they are wrong."""
    return load(
        ServeOptions,
        argv,
        prog="enginewire-backend serve",
        description="Serve text over gRPC (BackendService of enginewire.v1), over HTTP (as OpenAI does), and"
        " as a worker of the SMG gateway.",
        resolve=choose_address,
    ).options


def choose_address(loaded: Loaded[ServeOptions]) -> ServeOptions:
    """A host alone means the default port. Raises OptionError when two addresses of gRPC were given."""
    options = loaded.options
    if "http_host" in loaded.sources and options.http_port is None:
        options = replace(options, http_port=DEFAULT_HTTP_PORT)
    if "smg_host" in loaded.sources and options.smg_port is None:
        options = replace(options, smg_port=DEFAULT_SMG_PORT)
    if wants_tcp(loaded.sources) and options.port is None:
        return replace(options, port=DEFAULT_SERVE_PORT)
    return options


def check_command(command: str) -> None:
    """Raise OptionError when `command` cannot be split into arguments."""
    try:
        shlex.split(command)
    except ValueError as error:
        raise OptionError(f"--launch: {str(error).lower()} in {command!r}") from error

"""Where the faces of a backend listen, what they accept and how they end."""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from enginewire.access.listener_options import ListenerOptions, check_exposure, check_listener
from enginewire.addresses import default_socket, shown_socket, wants_tcp
from enginewire.backend.config.reaching import BackendOptions
from enginewire.backend.parsing.formats import ReasoningParserName, ToolParserName
from enginewire.options import Loaded, OptionError, computed, load, option
from enginewire.program.log_choices import LogFormat, LogLevel
from enginewire.tracing.options import TracingOptions, check_tracing

DEFAULT_SERVE_PORT: Final = 50052
DEFAULT_HTTP_PORT: Final = 8000
DEFAULT_SMG_PORT: Final = 50053
ROOT_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
DEFAULT_MESSAGE_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(TracingOptions, ListenerOptions, BackendOptions):
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
    http_port: int | None = option(
        None,
        f"serve the OpenAI-compatible API over HTTP at this port, such as {DEFAULT_HTTP_PORT}; 0 picks a free"
        " one and prints it",
        at_least=0,
        at_most=65535,
        heading="faces",
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

    log_level: LogLevel = option("info", "least severe log line to print", heading="logs")
    log_format: LogFormat = option(
        "auto", "style of log lines; auto is pretty on a terminal, else json", heading="log lines"
    )
    disable_log_stats: bool = option(
        False, "do not log every 10 s, while there are requests, how many and how quick they are"
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
            check_exposure(flag, host, self)
        check_listener(self)
        check_tracing(self)


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

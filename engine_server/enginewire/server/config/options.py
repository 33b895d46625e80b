"""Every option of the engine server: those of the model, where it listens, its limits and its life.

Names follow the flags people know from vLLM; the contract's own names are in the `contract=` notes.
Knows nothing about engines: an option that only one engine understands says so.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from enginewire.access.listener_options import ListenerOptions, check_exposure, check_listener
from enginewire.addresses import SHOWN_KV_FOLDER, default_kv_folder, default_socket, shown_socket
from enginewire.options import OptionError, computed, option
from enginewire.program.log_choices import LogFormat, LogLevel
from enginewire.server.config.kv_events import KvEventsConfig
from enginewire.server.config.model import ServedModelOptions
from enginewire.server.config.rules import RULES
from enginewire.tracing.options import TracingOptions, check_tracing

DEFAULT_PORT: Final = 50051
MAX_INT32: Final = 2**31 - 1

OpenAIServer = Literal["auto", "llama.cpp", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(TracingOptions, ListenerOptions, ServedModelOptions):
    """Options of `enginewire-server`. Raises OptionError for combinations that make no sense.

    The server listens on TCP when `port` is set, else on the Unix socket `uds`.
    """

    uds: Path = option(
        computed(lambda: default_socket("engine"), shown_socket("engine")),
        "Unix socket to listen on, readable by its owner only",
        heading="address",
    )
    host: str = option(
        "127.0.0.1", f"listen on TCP at this host, at port {DEFAULT_PORT} unless --port is set"
    )
    instance_id: str = option(
        "",
        "name of this server among others; drawn at start when not set",
        heading="identity",
        contract="GetEngineInfoResponse.instance_id",
    )
    worker_id: int | None = option(
        None,
        "number by which routing hints name this server; drawn at start when not set",
        at_least=0,
        at_most=2**64 - 1,
        contract="GetEngineInfoResponse.worker_id",
    )
    reflection: bool = option(False, "serve gRPC reflection, for grpcurl and the like")

    metrics_port: int | None = option(
        None,
        "export Prometheus metrics at this port of --host; 0 picks a free one and prints it",
        at_least=0,
        at_most=65535,
        heading="metrics",
        contract="Capabilities.metrics",
    )
    metrics_prefix: str = option("vllm:", "begin of the names that vLLM has too")

    kv_events_config: str = option(
        "",
        'publish the events of the prefix cache over ZeroMQ: {"enable_kv_cache_events": true, "endpoint":'
        ' "tcp://127.0.0.1:5557"} (JSON)',
        heading="events",
    )
    orca_load_reports: bool = option(
        False, "report the load as ORCA does: behind each answer of Generate, and as OpenRcaService"
    )

    kv_transfer_folder: Path = option(
        computed(default_kv_folder, SHOWN_KV_FOLDER),
        "private folder on this host where prefill and decode engines hand KV over",
        heading="--role prefill and decode",
    )
    kv_transfer_ttl: float = option(
        60.0,
        "how long a hand-off waits for its decode engine",
        unit="s",
        at_least=0.1,
        contract="PrefillHandoff.ttl_seconds",
    )
    kv_transfer_max_bytes: int = option(
        2**30,
        "most KV that waits: for a decode engine on the side that writes, for its turn on the other",
        unit="bytes",
        at_least=1,
    )

    max_num_queued_reqs: int = option(
        1024,
        "most requests that wait; further ones are refused as retryable",
        at_least=1,
        heading="limits",
        contract="Limits.max_num_queued_reqs",
    )
    max_num_queued_tokens: int = option(
        1_048_576,
        "most prompt tokens that wait; further requests are refused as retryable",
        unit="tokens",
        at_least=1,
        contract="Limits.max_num_queued_tokens",
    )
    max_caller_share: float = option(
        0.875,
        "part of the sequences and of the queue that one caller may have, where keys, certificates or tenants"
        " tell several apart; the rest is there when another one comes",
        at_least=0.01,
        at_most=1,
    )
    max_message_bytes: int = option(
        8 * 2**20,
        "largest message in both directions",
        unit="bytes",
        at_least=4096,
        at_most=MAX_INT32,
        contract="Limits.max_request_bytes",
    )
    max_concurrent_streams: int = option(1024, "most open RPCs per connection", at_least=1, at_most=MAX_INT32)
    stream_buffer_tokens: int = option(
        16_384,
        "tokens kept per request for a slow reader before the request is aborted",
        unit="tokens",
        at_least=1,
        at_most=2**32 - 1,
        contract="Limits.max_stream_buffer_tokens",
    )
    slow_consumer_timeout: float = option(
        30.0, "how long a reader may take nothing before its request is aborted", unit="s", at_least=0.1
    )

    shutdown_timeout: float = option(
        30.0,
        "how long running requests may go on after SIGTERM; 0 aborts them at once",
        unit="s",
        at_least=0,
        heading="life",
    )
    admission_grace: float = option(
        0.0,
        "how long a drain still accepts late requests while health says NOT_SERVING",
        unit="s",
        at_least=0,
    )
    watchdog_timeout: float = option(
        60.0,
        "how far a step may run beyond its expected time before the process ends; 0 is never",
        unit="s",
        at_least=0,
    )
    check_engine: bool | None = option(
        None,
        "check all that the engine sends; a mistake ends its request, and the log explains it; "
        "when not set on for an engine of your own, off for torch and mocker",
    )
    log_level: LogLevel = option("info", "least severe log line to print", heading="logs")
    log_format: LogFormat = option("auto", "style of log lines; auto is pretty on a terminal, else json")
    disable_log_stats: bool = option(
        False, "do not log every 10 s, while there are requests, how many and how quick they are"
    )
    log_requests: bool = option(False, "log a line per request: ids, counts and times, never prompts")

    upstream: str = option(
        "",
        "engine to be the server of: unix:/path or host:port of a bare one, the URL of a completions server",
        heading="--engine upstream and openai",
    )
    upstream_start_timeout: float = option(600.0, "how long it may take to answer", unit="s", at_least=0)
    upstream_silence_timeout: float = option(
        120.0, "how long a running request may wait for a token until it fails", unit="s", at_least=0.1
    )
    upstream_api_key: str = option(
        "",
        "API key to bring to the URL; others see it in the process list, so better in the environment or in"
        " --upstream-api-key-file",
        secret=True,
    )
    upstream_api_key_file: Path | None = option(
        None, "file that holds this key and nothing else; read again when it changes"
    )
    openai_server: OpenAIServer = option(
        "auto", "what answers at the URL; auto asks it", heading="--engine openai"
    )

    engine_args: str = option(
        "", "more for vLLM's own command line: --engine-args='--flag value'", heading="--engine vllm"
    )

    mocker_ttft_ms: float = option(
        0.0, "time to the first token", unit="ms", at_least=0, heading="--engine mocker"
    )
    mocker_itl_ms: float = option(
        0.0, "time between tokens, and for each input to embed", unit="ms", at_least=0
    )
    mocker_script: Path | None = option(
        None, 'JSON file with answers: [{"prompt": text or ids, "answer": text or ids}, …]'
    )
    mocker_fault: str = option("", "fail on purpose: step:N, stall:N or forward:REQUEST_ID")

    def __post_init__(self) -> None:
        for is_wrong, message in RULES.items():
            if is_wrong(self):
                raise OptionError(message)
        if not (self.kv_events.is_on_this_machine or self.allow_insecure):
            raise OptionError(
                "--kv-events-config: on the way to a host beyond loopback others could read prompts; use"
                " tcp://127.0.0.1:port or ipc:///path, or say --allow-insecure"
            )
        check_exposure("--host", self.host, self)
        check_listener(self)
        check_tracing(self)

    @property
    def kv_events(self) -> KvEventsConfig:
        """What --kv-events-config says. Raises OptionError."""
        try:
            return (
                KvEventsConfig.from_json(self.kv_events_config) if self.kv_events_config else KvEventsConfig()
            )
        except ValueError as error:
            raise OptionError(f"--kv-events-config: {error}") from None

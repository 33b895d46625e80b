"""How a worker of Dynamo is found, what it reaches, and how long it waits.

Dynamo's own environment variables stand in for what is not said here. Knows nothing about Dynamo's runtime.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from enginewire.addresses import default_socket, listens_on_loopback
from enginewire.calling.trust import TargetOptions, trust_of
from enginewire.options import OptionError, computed, option
from enginewire.program.log_choices import LogLevel

Discovery = Literal["etcd", "file", "kubernetes"]
RequestPlane = Literal["tcp", "nats"]
EventPlane = Literal["zmq", "nats"]

HOST: Final = "DYN_TCP_RPC_HOST"
GRACE: Final = "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"
# With both, a frontend has to show a certificate.
MUTUAL_TLS: Final = ("DYN_TCP_TLS_CERT_PATH", "DYN_TCP_TLS_CLIENT_CA_CERT_PATH")


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamoOptions(TargetOptions):
    """Options of `enginewire dynamo`."""

    ENV_PREFIX: ClassVar[str] = "ENGINEWIRE_DYNAMO_"

    target: str = option(
        computed(lambda: f"unix:{default_socket('engine')}", "unix:<the engine's default --uds>"),
        "the engine: a gRPC name such as unix:/run/engine.sock, localhost:50051 or dns:///engine:50051",
        heading="engine",
    )
    tokenizer: Path | None = option(
        None, "folder of the model's tokenizer; asked from the engine when not set"
    )
    card_folder: Path = option(
        computed(lambda: Path.home() / ".cache/enginewire/dynamo", "~/.cache/enginewire/dynamo"),
        "where the tokenizer is put for Dynamo; on all machines the workers of a model need the same path",
    )
    namespace: str = option(
        computed(lambda: os.environ.get("DYN_NAMESPACE", "dynamo"), "DYN_NAMESPACE, else dynamo"),
        "Dynamo's namespace",
        heading="worker",
    )
    component: str = option("backend", "name of the component: workers of one name serve the same model")
    endpoint: str = option("generate", "name of the component's endpoint")
    served_model_name: str = option("", "name of the model for callers; the engine's when not set")
    tool_call_parser: str = option(
        "", "the frontend's parser of calls of tools, such as hermes; without one they stay text"
    )
    reasoning_parser: str = option(
        "", "the frontend's parser of thinking, such as qwen3; without one it stays text"
    )
    kv_routing: bool = option(
        False,
        "publish what is in the prefix cache, and the load, for --router-mode kv of the frontend; over zmq"
        " it listens on all addresses and needs --allow-insecure",
    )
    discovery_backend: Discovery = option(
        computed(lambda: os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"), "DYN_DISCOVERY_BACKEND, else etcd"),  # type: ignore[arg-type,return-value]  # checked as every value is
        "where workers and frontends find each other; file is a folder of this machine, DYN_FILE_KV",
        heading="Dynamo",
    )
    request_plane: RequestPlane = option(
        computed(lambda: os.environ.get("DYN_REQUEST_PLANE", "tcp"), "DYN_REQUEST_PLANE, else tcp"),  # type: ignore[arg-type,return-value]  # the same
        "how requests arrive",
    )
    event_plane: EventPlane = option(
        computed(lambda: os.environ.get("DYN_EVENT_PLANE", "zmq"), "DYN_EVENT_PLANE, else zmq"),  # type: ignore[arg-type,return-value]  # the same
        "how --kv-routing publishes",
    )
    host: str = option(
        computed(lambda: os.environ.get(HOST, "127.0.0.1"), f"{HOST}, else 127.0.0.1"),
        "address at which frontends reach this worker over tcp; the port is a free one, or DYN_TCP_RPC_PORT",
    )
    allow_insecure: bool = option(
        False, "allow an address beyond loopback where anyone can send requests and read prompts"
    )
    connect_timeout: float = option(
        60.0,
        "how long to wait until the engine is ready, loading included",
        unit="s",
        at_least=0.1,
        heading="patience",
    )
    first_token_timeout: float = option(
        3600.0,
        "how long an engine may say nothing about a request before its first token; 0 is for ever",
        unit="s",
        at_least=0,
    )
    token_timeout: float = option(
        600.0,
        "how long an engine may say nothing about an answer that has begun; 0 is for ever",
        unit="s",
        at_least=0,
    )
    grace_period: float = option(
        computed(lambda: float(os.environ.get(GRACE) or 5.0), f"{GRACE}, else 5"),
        "how long requests are still taken after SIGTERM, until all frontends have heard of it",
        unit="s",
        at_least=0,
    )
    shutdown_timeout: float = option(
        30.0,
        "how long running requests may go on after that, before they go on at another worker",
        unit="s",
        at_least=0,
    )
    log_level: LogLevel = option("warning", "least severe log line to print, Dynamo's too", heading="logs")

    @property
    def path(self) -> str:
        """The endpoint's name in Dynamo."""
        return f"{self.namespace}.{self.component}.{self.endpoint}"

    def __post_init__(self) -> None:
        trust_of(self)
        is_closed = all(os.environ.get(name) for name in MUTUAL_TLS)
        if self.allow_insecure:
            return
        if self.request_plane == "tcp" and not is_closed and not listens_on_loopback(self.host):
            raise OptionError(
                "--host: whoever reaches a host beyond loopback could send requests and read prompts; use"
                f" 127.0.0.1, set {' and '.join(MUTUAL_TLS)}, or say --allow-insecure"
            )
        if self.kv_routing and self.event_plane == "zmq":
            raise OptionError(
                "--kv-routing: whoever reaches this machine could read which blocks are cached; say"
                " --event-plane nats or --allow-insecure"
            )

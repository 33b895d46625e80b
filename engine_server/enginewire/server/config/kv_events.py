"""What `--kv-events-config` says, in vLLM's words: where events of the prefix cache go over ZeroMQ."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

from enginewire.addresses import is_loopback
from enginewire.options import json_fields

WORDS: Final = ("zmq", "null")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    """vLLM's `KVEventsConfig`, without `max_queue_size`: who cannot keep up gets a snapshot here.

    `endpoint` is `tcp://host:port`, a port per rank from there on, or `ipc:///path`. `buffer_steps` are the
    batches kept for `replay_endpoint`; `hwm` is how many wait for one subscriber before some are dropped.
    """

    enable_kv_cache_events: bool = False
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        _check("enable_kv_cache_events", isinstance(self.enable_kv_cache_events, bool), "true or false")
        _check("publisher", self.publisher in WORDS, " or ".join(WORDS))
        _check("endpoint", _is_endpoint(self.endpoint), "tcp://host:port or ipc:///path")
        is_address = self.replay_endpoint is None or _is_endpoint(self.replay_endpoint)
        _check("replay_endpoint", is_address, "tcp://host:port or ipc:///path")
        _check("topic", isinstance(self.topic, str), "text")
        for name in ("buffer_steps", "hwm"):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
            _check(name, is_count, "a number from 1 on")

    @property
    def publishes(self) -> bool:
        """Events go out."""
        return self.enable_kv_cache_events and self.publisher == "zmq"

    @property
    def is_on_this_machine(self) -> bool:
        """Nobody beyond it gets the events, which hold the tokens of prompts."""
        if not self.publishes:
            return True
        hosts = (_host_of(each) for each in (self.endpoint, self.replay_endpoint) if each)
        return all(host is None or is_loopback(host) for host in hosts)

    @staticmethod
    def from_json(text: str) -> KvEventsConfig:
        """What the option says; raises ValueError that names the key and what is allowed."""
        given = json_fields(text, [field.name for field in fields(KvEventsConfig)])
        if "enable_kv_cache_events" not in given:
            raise ValueError("enable_kv_cache_events: must be true for events to be published")
        return KvEventsConfig(**given)


def at_rank(endpoint: str, dp_rank: int) -> str:
    """The endpoint of a rank: the ports of TCP follow each other, and the paths of sockets get its number."""
    host, _, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp:"):
        return f"{host}:{int(port) + dp_rank}"
    return f"{endpoint}_dp{dp_rank}" if dp_rank else endpoint


def _check(name: str, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name}: must be {allowed}")


def _is_endpoint(value: object) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"tcp://[^/\s]+:[0-9]{1,5}|ipc:///\S+", value))


def _host_of(endpoint: str) -> str | None:
    """None for a path."""
    return (
        endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]") if endpoint.startswith("tcp") else None
    )

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from enginewire.addresses import default_socket, is_loopback, listens_on_loopback, wants_tcp
from enginewire.options import OptionError


def test_the_default_socket_is_in_the_runtime_folder_of_the_user(tmp_path: Path) -> None:
    socket = default_socket("engine", {"XDG_RUNTIME_DIR": str(tmp_path)})
    assert socket == tmp_path / "enginewire" / "engine.sock"


@pytest.mark.parametrize("runtime", ["", "relative", "/does/not/exist"])
def test_without_a_runtime_folder_the_socket_has_the_user_in_its_path(runtime: str) -> None:
    socket = default_socket("engine", {"XDG_RUNTIME_DIR": runtime})
    assert socket == Path(f"/tmp/enginewire-{os.getuid()}/engine.sock")
    assert default_socket("engine", {}) == socket


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("192.168.1.5", False),
        ("localhost.example.org", False),
        ("example.org", False),
    ],
)
def test_only_loopback_is_out_of_reach_for_others(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


@pytest.mark.parametrize(
    ("host", "found", "is_local"),
    [
        ("localhost", ["127.0.0.1", "::1"], True),
        # What /etc/hosts says counts, not what the name looks like.
        ("localhost", ["192.168.1.5"], False),
        ("localhost", ["127.0.0.1", "192.168.1.5"], False),
        ("myhost", ["127.0.1.1"], True),
        ("myhost", ["127.0.1.1", "2001:db8::5"], False),
    ],
)
def test_a_name_is_judged_by_every_address_it_resolves_to(
    host: str, found: list[str], is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolved(asked: str, *_: object, **__: object) -> list[object]:
        assert asked == host
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    assert listens_on_loopback(host) is is_local


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.1", True), ("::1", True), ("", False), ("0.0.0.0", False), ("::", False), ("a" * 70, False)],
)
def test_an_address_is_judged_as_the_socket_reads_it(host: str, is_local: bool) -> None:
    assert listens_on_loopback(host) is is_local


def test_tcp_is_wanted_when_host_or_port_was_given() -> None:
    assert not wants_tcp({})
    assert not wants_tcp({"uds": "--uds", "model": "MODEL"})
    assert wants_tcp({"host": "--host"})
    assert wants_tcp({"port": "ENGINEWIRE_PORT"})


def test_two_addresses_are_refused_with_their_sources() -> None:
    with pytest.raises(OptionError, match=r"engine\.toml: uds and --port exclude each other"):
        wants_tcp({"port": "--port", "uds": "engine.toml: uds"})

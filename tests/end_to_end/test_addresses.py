"""Where an engine server listens: alone, in private, or not at all."""

from __future__ import annotations

import signal
import socket
import stat
from ipaddress import ip_address

import psutil
import pytest

EXIT_ADDRESS = 98


def refusal(server) -> str:
    """The one line of a server that could not listen."""
    assert server.exit_code() == EXIT_ADDRESS
    [event] = [event for event in server.events() if event.startswith("cannot listen")]
    assert "Traceback" not in server.log_path.read_text()
    return event


async def test_port_0_chooses_a_port_and_prints_it(launch, connect):
    server = launch("--port", "0")
    host, port = server.target().split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert await connect(f"{host}:{port}").finish_of("r", 3) == (2, 3)


def test_a_port_in_use_ends_it_with_98(launch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = refusal(launch("--port", str(port)))
        assert f"127.0.0.1:{port}: address already in use; choose another one with --port" in told


async def test_two_servers_never_share_a_port(launch, connect):
    target = launch("--port", "0").target()
    assert "address already in use" in refusal(launch("--port", target.split(":")[1]))
    assert await connect(target).finish_of("r", 3) == (2, 3)


async def test_a_live_socket_is_refused_and_goes_on_working(launch, connect):
    target = launch().target()
    assert "in use by another server; choose another address with --uds or --port" in refusal(launch())
    assert await connect(target).finish_of("r", 3) == (2, 3)


async def test_the_socket_of_a_killed_server_is_replaced(launch, connect, folder):
    first = launch()
    first.target()
    first.signal(signal.SIGKILL)
    first.exit_code()
    assert (folder / "engine.sock").exists()
    assert await connect(launch().target()).finish_of("r", 3) == (2, 3)


def test_a_file_in_the_way_is_refused_and_kept(launch, folder):
    (folder / "engine.sock").write_text("precious")
    assert "not a socket" in refusal(launch())
    assert (folder / "engine.sock").read_text() == "precious"


def test_a_path_that_is_too_long_is_refused_by_its_length(launch, folder):
    assert "longer than 107 bytes" in refusal(launch("--uds", str(folder / ("x" * 100))))


def test_the_socket_is_private_even_under_an_open_umask(launch, folder):
    path = folder / "below" / "engine.sock"
    launch("--uds", str(path), umask=0).target()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("arguments", [(), ("--port", "0")])
def test_it_listens_on_loopback_or_its_socket_and_nowhere_else(launch, arguments):
    server = launch(*arguments)
    target = server.target()
    listening = [
        (ip_address(connection.laddr.ip), connection.laddr.port)
        for connection in psutil.Process(server.process.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert [port for _, port in listening] == ([int(target.split(":")[1])] if arguments else [])
    assert all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address, _ in listening)

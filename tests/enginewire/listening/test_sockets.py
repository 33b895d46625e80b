"""Sockets that are ours alone, and ports nobody else has."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enginewire.listening.sockets import MAX_PATH_BYTES, AddressError, UnixSocket, check_port_is_free
from tests.patience import PATIENCE_SECONDS


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield server


def bind(place: UnixSocket) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    with place.private():
        server.bind(str(place.path))
    return server


@pytest.fixture
def path(socket_folder: Path) -> Path:
    return socket_folder / "engine.sock"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_the_socket_is_for_its_owner_only_whatever_the_umask(path, umask):
    old = os.umask(umask)
    try:
        place = UnixSocket(path)
        with bind(place):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.umask(umask) == umask
        place.close()
    finally:
        os.umask(old)


def test_folders_are_made_private(socket_folder):
    UnixSocket(socket_folder / "a" / "engine.sock").close()
    assert stat.S_IMODE((socket_folder / "a").stat().st_mode) == 0o700


def test_a_stale_socket_is_replaced(path):
    with listening(path):
        pass
    place = UnixSocket(path)
    assert not path.exists()
    place.close()


def test_a_live_socket_of_someone_else_is_refused_and_left_alone(path):
    with listening(path) as server:
        with pytest.raises(AddressError, match="in use by another server"):
            UnixSocket(path)
        server.settimeout(PATIENCE_SECONDS)
        server.accept()[0].close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_second_server_is_refused_until_the_first_is_closed(path):
    first = UnixSocket(path)
    with pytest.raises(AddressError, match="in use by another server"):
        UnixSocket(path)
    first.close()
    UnixSocket(path).close()


def test_what_is_no_socket_is_refused_and_kept(path):
    path.write_text("precious")
    with pytest.raises(AddressError, match="not a socket"):
        UnixSocket(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("target", ["folder", "link"])
def test_folders_and_links_are_refused(socket_folder, path, target):
    if target == "folder":
        path.mkdir()
    else:
        path.symlink_to(socket_folder / "elsewhere")
    with pytest.raises(AddressError, match="not a socket"):
        UnixSocket(path)


def test_a_lock_file_that_is_a_link_is_not_followed(socket_folder, path):
    Path(f"{path}.lock").symlink_to(socket_folder / "elsewhere")
    with pytest.raises(AddressError):
        UnixSocket(path)
    assert not (socket_folder / "elsewhere").exists()


def test_a_path_that_does_not_fit_is_refused_by_its_length(socket_folder):
    longest = socket_folder / ("x" * (MAX_PATH_BYTES - len(bytes(socket_folder)) - 1))
    place = UnixSocket(longest)
    bind(place).close()
    place.close()
    with pytest.raises(AddressError, match="longer than 107 bytes"):
        UnixSocket(Path(f"{longest}x"))


def test_a_folder_that_cannot_be_made_is_refused(path):
    path.write_text("")
    with pytest.raises(AddressError, match=r"Not a directory|File exists"):
        UnixSocket(path / "engine.sock")


def test_a_folder_where_everybody_may_replace_files_is_refused_unless_sticky(socket_folder, path):
    socket_folder.chmod(0o777)
    with pytest.raises(AddressError, match="everybody may replace"):
        UnixSocket(path)
    socket_folder.chmod(0o1777)
    UnixSocket(path).close()


def test_a_folder_of_another_user_is_refused(path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: path.parent.stat().st_uid + 1)
    owner = path.parent.stat().st_uid
    if owner == 0:  # root may own any folder
        os.chown(path.parent, 12345, -1)
    with pytest.raises(AddressError, match=r"belongs to user .*, not to this user or root"):
        UnixSocket(path)


def test_closing_removes_the_socket(path):
    place = UnixSocket(path)
    with bind(place):
        place.close()
    assert not path.exists()


def test_closing_leaves_a_socket_that_took_our_place(path):
    place = UnixSocket(path)
    with bind(place):
        path.unlink()
        with listening(path):
            place.close()
            assert path.exists()


def test_closing_before_anything_was_bound_is_fine(path):
    UnixSocket(path).close()


def test_a_port_somebody_listens_on_is_refused_by_its_number():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(AddressError, match=f"127.0.0.1:{port}: address already in use"):
            check_port_is_free("127.0.0.1", port)
    check_port_is_free("127.0.0.1", port)


def test_port_0_is_always_free():
    check_port_is_free("127.0.0.1", 0)


def test_a_host_that_is_not_ours_is_refused():
    with pytest.raises(AddressError, match=r"192\.0\.2\.1:50051"):
        check_port_is_free("192.0.2.1", 50051)

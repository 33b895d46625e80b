"""Who may have put a socket where it is."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from enginewire.files.trusted_paths import UntrustedPath, check_socket, user_id
from enginewire.options import OptionError

STRANGER = 12345
Stat = Callable[[Path], os.stat_result]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A socket in a folder of ours."""
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    return path


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Give a path to a stranger, without being root."""
    given: set[Path] = set()
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = real(path)
        values = list(found)
        if path in given:
            values[4] = STRANGER
        return os.stat_result(values)

    monkeypatch.setattr(Path, "lstat", lstat)
    return given.add


def test_our_own_socket_is_trusted_and_one_that_is_not_there_yet(place: Path) -> None:
    check_socket(place)
    check_socket(place.parent / "later.sock")
    check_socket(place.parent / "no" / "folder" / "later.sock")


@pytest.mark.parametrize("whose", ["the socket", "its folder"])
def test_what_belongs_to_a_stranger_is_refused_unless_named(place: Path, give, whose: str) -> None:
    strange = place if whose == "the socket" else place.parent
    give(strange)
    with pytest.raises(
        UntrustedPath, match=f"^{strange} belongs to user {STRANGER}, not to this user or root$"
    ):
        check_socket(place)
    check_socket(place, owner=STRANGER)


def test_a_link_is_followed_when_it_is_ours(place: Path, tmp_path: Path, give) -> None:
    link = tmp_path / "link.sock"
    link.symlink_to(place.name)
    check_socket(link)
    give(place)
    with pytest.raises(UntrustedPath, match=f"^{place} belongs"):
        check_socket(link)


def test_a_link_of_a_stranger_is_refused_wherever_it_leads(place: Path, tmp_path: Path, give) -> None:
    folder = tmp_path / "folder"
    folder.symlink_to(tmp_path, target_is_directory=True)
    check_socket(folder / place.name)
    give(folder)
    with pytest.raises(UntrustedPath, match=f"^{folder} belongs"):
        check_socket(folder / place.name)


def test_a_folder_open_to_everybody_is_refused_unless_it_is_sticky(place: Path) -> None:
    place.parent.chmod(0o777)
    with pytest.raises(UntrustedPath, match="everybody may replace files in it"):
        check_socket(place)
    place.parent.chmod(0o1777)
    check_socket(place)


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UntrustedPath, match="more than 40 links"):
        check_socket(tmp_path / "a")


def test_users_are_named_or_numbered() -> None:
    assert [user_id(""), user_id("0"), user_id("root")] == [None, 0, 0]
    with pytest.raises(OptionError, match="--socket-owner: there is no user 'nobody-here'"):
        user_id("nobody-here")

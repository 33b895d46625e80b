"""Whether a socket is where this user, root or somebody who was named has put it.

Looks at owners and modes along the path; opens nothing and knows nothing about what answers there.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Final

from enginewire.options import OptionError

# As many as Linux follows.
MAX_LINKS: Final = 40


class UntrustedPath(Exception):
    """Somebody else can decide what the path leads to; the message says who and where."""


def user_id(name: str) -> int | None:
    """The number of a user given by name or number, None for "". Raises OptionError."""
    if not name:
        return None
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise OptionError(f"--socket-owner: there is no user {name!r}") from error


def check_socket(path: Path, owner: int | None = None) -> None:
    """Raise UntrustedPath unless socket, folder and links on the way are this user's, root's or `owner`'s.

    Folders on the way that everybody may write to have to be sticky. What does not exist yet is no fault.
    """
    socket = _resolved(path.absolute(), owner)
    for place in (socket.parent, socket):
        if (info := _status(place)) is not None:
            _check_owner(place, info, owner)


def check_folder(folder: Path, owner: int | None = None) -> None:
    """As `check_socket` for a folder in which a socket will be. Raises UntrustedPath."""
    place = _resolved(folder.absolute(), owner)
    if (info := _status(place)) is not None:
        _check_owner(place, info, owner)


def _resolved(path: Path, owner: int | None) -> Path:
    """The path without links, whose owners are known. Raises UntrustedPath."""
    place, rest, num_links = Path("/"), list(path.parts[1:]), 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            place = place.parent
            continue
        info = _status(place / part)
        if info is not None and stat.S_ISLNK(info.st_mode):
            num_links += 1
            if num_links > MAX_LINKS:
                raise UntrustedPath(f"{path}: leads through more than {MAX_LINKS} links")
            _check_owner(place / part, info, owner)
            target = Path(os.readlink(place / part))
            rest[:0] = target.parts[1:] if target.is_absolute() else target.parts
            place = Path("/") if target.is_absolute() else place
            continue
        place = place / part
        if info is not None and stat.S_ISDIR(info.st_mode):
            _check_open(place, info)
    return place


def _check_owner(place: Path, info: os.stat_result, owner: int | None) -> None:
    if info.st_uid not in (0, os.getuid(), owner):
        raise UntrustedPath(f"{place} belongs to {_name(info.st_uid)}, not to this user or root")


def _check_open(folder: Path, info: os.stat_result) -> None:
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        raise UntrustedPath(f"{folder}: everybody may replace files in it")


def _status(place: Path) -> os.stat_result | None:
    try:
        return place.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        # Whoever connects or binds there is told.
        return None


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name!r}"
    except KeyError:
        return f"user {uid}"

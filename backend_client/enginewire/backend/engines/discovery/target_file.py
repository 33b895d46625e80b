"""`file:/path`: a list of engines that somebody else writes, read again when it has changed.

One target a line, or JSON as Prometheus' `file_sd` has it. Knows nothing about who follows the list.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

from enginewire.backend.engines.discovery.address import Address, InvalidTargets, check_engine
from enginewire.files.watched import WatchedFiles

SCHEME: Final = "file:"
MAX_BYTES: Final = 1 << 20


class TargetFile:
    """One file. A list that cannot be used is logged, and the one before stays."""

    def __init__(self, target: str) -> None:
        """Raises InvalidTargets."""
        text = target.removeprefix(SCHEME)
        self._path = Path(text.removeprefix("//") if text.startswith("///") else text)
        self._file = WatchedFiles([self._path], self._read, "list of engines", InvalidTargets)

    async def look(self) -> tuple[Address, ...] | None:
        """See `Source`."""
        return await asyncio.to_thread(self._file.current)

    def _read(self) -> tuple[Address, ...]:
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            text = data.decode()
        except OSError as error:
            raise InvalidTargets(f"{self._path}: {(error.strerror or str(error)).lower()}") from error
        except UnicodeDecodeError as error:
            raise InvalidTargets(f"{self._path}: is not UTF-8") from error
        if len(data) > MAX_BYTES:
            raise InvalidTargets(f"{self._path}: has more than {MAX_BYTES} bytes")
        try:
            targets = _of_json(text) if self._path.suffix == ".json" else _of_lines(text)
        except InvalidTargets as error:
            raise InvalidTargets(f"{self._path}: {error}") from error
        return tuple(Address(target) for target in dict.fromkeys(targets))


def _of_lines(text: str) -> list[str]:
    """One target a line; `#` begins a comment. A file without any is taken for one that is being written."""
    targets = []
    for number, line in enumerate(text.splitlines(), 1):
        if target := line.partition("#")[0].strip():
            targets.append(_checked(f"line {number}", target))
    if not targets:
        raise InvalidTargets("names no engine")
    return targets


def _of_json(text: str) -> list[str]:
    """`[{"targets": ["host:port", …]}, …]`; `labels` are for Prometheus. `[]` is no engine."""
    try:
        groups = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidTargets(f"is not JSON: {error}") from error
    if not isinstance(groups, list):
        raise InvalidTargets("must be a list of objects with targets")
    targets = []
    for place, group in enumerate(groups):
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise InvalidTargets(f"[{place}]: must be an object with a list of targets")
        if unknown := sorted(group.keys() - {"targets", "labels"}):
            raise InvalidTargets(f"[{place}].{unknown[0]}: is not known, only targets and labels are")
        for number, target in enumerate(group["targets"]):
            targets.append(_checked(f"[{place}].targets[{number}]", target))
    return targets


def _checked(where: str, target: object) -> str:
    if not isinstance(target, str):
        raise InvalidTargets(f"{where}: must be a string")
    try:
        return check_engine(target)
    except InvalidTargets as error:
        raise InvalidTargets(f"{where}: {error}") from error

"""What was compiled once is loaded again, and nothing is that anybody else could have put there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from enginewire.torch_engine.layers.kernels import cache as module
from enginewire.torch_engine.layers.kernels.cache import LibraryCache, user_cache_folder

LIBRARY = Path(torch._C.__file__).read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "enginewire"


@pytest.fixture
def name(tmp_path: Path) -> str:
    """Another one for every test, as for every library: the loader knows by name what it has loaded."""
    return f"{tmp_path.name}.so"


def test_what_is_stored_is_loaded_and_readable_for_this_user_alone(folder: Path, name: str) -> None:
    cache = LibraryCache(folder)
    assert cache.load(name) is None
    cache.store(name, LIBRARY)
    assert hasattr(cache.load(name), "PyInit__C")
    assert os.listdir(folder) == [name]
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / name)] == [0o700, 0o600]


def moved_behind_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


PLANTED: dict[str, Callable[[Path, str], None]] = {
    "folder of a group": lambda folder, name: folder.chmod(0o770),
    "folder that others may list": lambda folder, name: folder.chmod(0o755),
    "folder behind a link": lambda folder, name: moved_behind_a_link(folder),
    "file that others may write": lambda folder, name: (folder / name).chmod(0o602),
    "file behind a link": lambda folder, name: moved_behind_a_link(folder / name),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_what_others_could_have_planted_is_not_loaded(
    folder: Path, name: str, plant: Callable[[Path, str], None]
) -> None:
    LibraryCache(folder).store(name, LIBRARY)
    assert LibraryCache(folder).load(name)
    plant(folder, name)
    assert LibraryCache(folder).load(name) is None


def test_the_folder_of_another_user_is_neither_read_nor_written(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    LibraryCache(folder).store(name, LIBRARY)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    LibraryCache(folder).store("b.so", LIBRARY)
    assert LibraryCache(folder).load(name) is None
    assert os.listdir(folder) == [name]


def test_a_file_of_another_user_is_not_loaded(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    LibraryCache(folder).store(name, LIBRARY)
    stat = os.stat

    def owned_by_another(path: str, **options: object) -> os.stat_result:
        found = stat(path, **options)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:]))

    monkeypatch.setattr(os, "stat", owned_by_another)
    assert LibraryCache(folder).load(name) is None


def test_a_broken_library_is_as_good_as_none_and_replaced(folder: Path, name: str) -> None:
    cache = LibraryCache(folder)
    cache.store(name, LIBRARY[:100])
    assert cache.load(name) is None
    cache.store(name, LIBRARY)
    assert cache.load(name)


def test_where_no_folder_can_be_nothing_is_kept_and_nothing_fails(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    cache = LibraryCache(tmp_path / "file" / "enginewire")
    cache.store(name, LIBRARY)
    assert cache.load(name) is None


def test_the_oldest_libraries_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_LIBRARIES", 2)
    cache = LibraryCache(folder)
    for age, each in enumerate(("b.so", "a.so", "c.so")):
        cache.store(each, LIBRARY)
        os.utime(folder / each, ns=(age, age))
    assert sorted(os.listdir(folder)) == ["a.so", "c.so"]


@pytest.mark.parametrize(("chosen", "found"), [("/x", "/x"), ("", "/h/.cache"), ("relative", "/h/.cache")])
def test_the_folder_is_where_the_user_keeps_caches(
    chosen: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    monkeypatch.setenv("HOME", "/h")
    assert user_cache_folder() == Path(found) / "enginewire"


def test_a_user_without_a_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    LibraryCache(user_cache_folder()).store("a.so", LIBRARY)
    assert LibraryCache(user_cache_folder()).load("a.so") is None
    assert os.listdir(tmp_path) == []

"""Kernels are built once; where they cannot be built, there are none."""

from __future__ import annotations

import subprocess
import sys

import pytest

from enginewire.torch_engine.layers.kernels import library as module

SMALL = "small.cpp", ()
FLAGGED = "small.cpp", ("-fno-math-errno",)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """With a small source, and a cache that is empty."""
    (tmp_path / "small.cpp").write_text('#include "value.h"\nextern "C" int value() { return VALUE + 0; }')
    (tmp_path / "value.h").write_text("#define VALUE 1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "HEADERS", (tmp_path / "value.h",))
    return tmp_path


@pytest.fixture
def builds(monkeypatch):
    """The commands that built something."""
    run, built = subprocess.run, []

    def running(command, **options):
        built.extend([command] if "-o" in command else [])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", running)
    return built


def value(source: module.Source = SMALL) -> int:
    """What the kernel of a new start answers; 0 without a compiler."""
    module._built.cache_clear()
    library = module.kernel_library.__wrapped__(source)
    return library.value() if library else 0


def test_a_machine_without_a_working_compiler_has_no_library(monkeypatch, folder):
    for name in ("no-such-compiler", "false"):
        monkeypatch.setattr(module, "COMPILERS", (name,))
        assert not value()

    def hang(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("c++", 60.0)

    monkeypatch.setattr(module, "COMPILERS", ("true",))
    monkeypatch.setattr(subprocess, "run", hang)
    assert not value()


def test_a_library_is_built_once_and_loaded_at_the_next_start(folder, builds):
    if not value():
        return  # no compiler here: what happens then is tested above
    assert (value(), len(builds)) == (1, 1)
    (folder / "value.h").write_text("#define VALUE 2")
    assert (value(), value(), len(builds)) == (2, 2, 2)
    (folder / "small.cpp").write_text('#include "value.h"\nextern "C" int value() { return VALUE + 1; }')
    assert (value(), len(builds)) == (3, 3)
    assert (value(FLAGGED), len(builds)) == (3, 4)


def test_what_was_begun_is_not_built_again(folder, builds):
    module._built.cache_clear()
    module.begin_builds(SMALL, FLAGGED)
    assert module._built.cache_info().currsize == 2
    for source in (SMALL, FLAGGED):
        library = module.kernel_library.__wrapped__(source)
        assert not library or library.value() == 1
    assert len(builds) in (0, 2)


def test_what_was_kept_and_is_broken_is_built_again(folder, builds):
    source = "small.cpp", ("-fno-trapping-math",)  # a name of its own: what a process has loaded stays
    try:
        name, _ = module._build(source)
    except FileNotFoundError:
        return  # no compiler here: what happens then is tested above
    (folder / "enginewire" / name).write_bytes(b"not a library")
    assert (value(source), value(source), len(builds)) == (1, 1, 2)


def test_a_user_without_a_cache_folder_has_libraries_too(monkeypatch, folder, builds):
    has_compiler = value()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "value.h"))
    assert value() == value() == has_compiler
    assert len(builds) in (0, 3)


def test_the_compiler_works_before_torch_is_there():
    code = f"import sys; import {module.__name__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

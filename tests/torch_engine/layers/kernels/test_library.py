"""Kernels are built once; where they cannot be built, there are none."""

from __future__ import annotations

import subprocess

from enginewire.torch_engine.layers.compiled_ops import ARITHMETIC, SOURCE
from enginewire.torch_engine.layers.kernels import library as module


def test_a_machine_without_a_working_compiler_has_no_library(monkeypatch):
    build = module.kernel_library.__wrapped__
    monkeypatch.setattr(module, "COMPILERS", ("no-such-compiler",))
    assert build(SOURCE, ARITHMETIC) is None
    monkeypatch.setattr(module, "COMPILERS", ("false",))
    assert build(SOURCE, ARITHMETIC) is None

    def hang(*args: object, **kwargs: object) -> None:
        raise subprocess.TimeoutExpired("c++", 60.0)

    monkeypatch.setattr(module, "COMPILERS", ("true",))
    monkeypatch.setattr(subprocess, "run", hang)
    assert build(SOURCE, ARITHMETIC) is None


def test_a_library_is_built_once_and_loaded_at_the_next_start(monkeypatch, tmp_path):
    run, source, header, built = subprocess.run, tmp_path / "small.cpp", tmp_path / "value.h", []

    def running(command, **options):
        built.extend([command] if "-o" in command else [])
        return run(command, **options)

    def value(arithmetic: tuple[str, ...] = ()) -> int:
        library = module.kernel_library.__wrapped__(source, arithmetic)
        return library.value() if library else 0

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "HEADERS", (header,))
    monkeypatch.setattr(subprocess, "run", running)
    source.write_text('#include "value.h"\nextern "C" int value() { return VALUE + 0; }')
    header.write_text("#define VALUE 1")
    if not value():
        return  # no compiler here: what happens then is tested above
    assert (value(), len(built)) == (1, 1)
    header.write_text("#define VALUE 2")
    assert (value(), value(), len(built)) == (2, 2, 2)
    source.write_text('#include "value.h"\nextern "C" int value() { return VALUE + 1; }')
    assert (value(), len(built)) == (3, 3)
    assert (value(("-fno-math-errno",)), len(built)) == (3, 4)

"""Libraries of our own kernels for processors: built by the machine's own compiler, or kept from before.

The first start builds them, in a few seconds, while torch loads, and they stay in the user's cache folder; a
machine without a compiler has none. Knows nothing about what the kernels compute. Importing this imports no
torch.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final, cast

from enginewire.torch_engine.layers.kernels.cache import LibraryCache, user_cache_folder

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
HEADERS = tuple(sorted(HERE.glob("*.h")))
COMPILERS = ("c++", "g++", "clang++")
BUILD_SECONDS = 60.0
BUILD = ("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC")
REORDERED: Final = "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"
"""Sums may be reordered, but infinities and NaN keep their meaning."""
OPS: Final = "ops.cpp", REORDERED
PRODUCTS: Final = "products.cpp", ("-ffp-contract=off",)
"""Rounded after each operation, as oneDNN's products of many rows are."""
WHOLE: Final = "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"
"""Rounded after each operation, as plain torch is."""
INT4: Final = "int4.cpp", WHOLE
INT4_ROUNDING: Final = "int4_rounding.cpp", WHOLE

Source = tuple[str, tuple[str, ...]]
"""A file of this folder, and what the compiler is told of its arithmetic."""
Kernel = Callable[..., None]
COMPILED_DTYPES: Final = "float32", "bfloat16"
"""That a model may compute in."""
TYPES: Final = {"float32": "float", "bfloat16": "bf16", "int8": "step"}
"""By dtype: what it is called in the sources."""


def attention(computed: str, cached: str) -> Source:
    """For a model that computes in one dtype, and keeps keys and values in another."""
    return "attention.cpp", (*REORDERED, f"-DCOMPUTED={TYPES[computed]}", f"-DCACHED={TYPES[cached]}")


def begin_builds(*sources: Source) -> None:
    """Have the compiler build these meanwhile, where they were not kept from before."""
    for source in sources:
        _built(source)


@cache
def kernel_library(source: Source) -> ctypes.PyDLL | None:
    """What is built of `source`; None where it cannot be built."""
    # A library takes the OpenMP runtime that is there already, which must be torch's.
    import torch  # noqa: F401

    try:
        name, content = _built(source).result()
        cached = LibraryCache(user_cache_folder())
        if (kept := cached.load(name)) is not None:
            return kept
        if not content:  # what was kept is broken
            content = _compiled(_command(source), source)
            cached.store(name, content)
        return _loaded(content)
    except FileNotFoundError:
        log.info("no C++ compiler: plain torch does the work of our kernels")
    except (OSError, subprocess.SubprocessError) as error:
        log.info("the C++ compiler cannot build %s: plain torch does its work (%s)", source[0], error)
    return None


def find_kernel(source: Source, name: str, dtype: torch.dtype, *kinds: type) -> Kernel | None:
    """The one for a dtype, which is called with arguments of these kinds.

    None where the library cannot be built, and where this processor has no such instructions.
    """
    kernel = getattr(kernel_library(source), kernel_name(name, dtype), None)
    if kernel is not None:
        kernel.argtypes, kernel.restype = kinds, None
    return cast("Kernel | None", kernel)


def kernel_name(kernel: str, dtype: torch.dtype) -> str:
    """What a kernel is called for a dtype."""
    return f"{kernel}_{dtype_name(dtype)}"


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Where its numbers lie, for a kernel that does without."""
    return None if tensor is None else tensor.data_ptr()


def dtype_name(dtype: torch.dtype) -> str:
    """Without what torch writes before it."""
    return str(dtype).removeprefix("torch.")


@cache
def _built(source: Source) -> Future[tuple[str, bytes]]:
    """Begins with the first call; the library's name in the cache, and its content where it was not there."""
    built: Future[tuple[str, bytes]] = Future()

    def build() -> None:
        try:
            built.set_result(_build(source))
        except Exception as error:  # noqa: BLE001  # whoever waits gets it
            built.set_exception(error)

    Thread(target=build, name=f"build {source[0]}", daemon=True).start()
    return built


def _build(source: Source) -> tuple[str, bytes]:
    command, cached = _command(source), LibraryCache(user_cache_folder())
    name = _name(command, HERE / source[0])
    if cached.holds(name):
        return name, b""
    content = _compiled(command, source)
    cached.store(name, content)
    return name, content


def _command(source: Source) -> list[str]:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError
    return [compiler, *BUILD, *source[1]]


def _compiled(command: list[str], source: Source) -> bytes:
    with tempfile.TemporaryDirectory(prefix="enginewire-") as folder:
        target = Path(folder) / "library.so"
        _run([*command, "-o", str(target), str(HERE / source[0])])
        return target.read_bytes()


def _name(command: list[str], source: Path) -> str:
    """Stands for what the compiler builds here: the source, its version, and what "native" means to it."""
    told = _run([*command, "-###", "-E", "-x", "c++", os.devnull]).stderr
    texts = b"".join(path.read_bytes() for path in (source, *HEADERS))
    return f"{source.stem}-{sha256(texts + told).hexdigest()}.so"


def _loaded(content: bytes) -> ctypes.PyDLL:
    with tempfile.TemporaryDirectory(prefix="enginewire-") as folder:
        target = Path(folder) / "library.so"
        target.write_bytes(content)
        # The calls of a PyDLL are too short to be worth giving up the interpreter lock.
        return ctypes.PyDLL(str(target))


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)  # noqa: S603  # ours

"""Libraries of our own kernels for processors: built by the machine's own compiler, or kept from before.

The first start builds them, each in about a second, and they stay in the user's cache folder; a machine
without a compiler has none. Knows nothing about what the kernels compute.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import torch

from enginewire.torch_engine.layers.kernels.cache import LibraryCache, user_cache_folder

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
HEADERS = tuple(sorted(HERE.glob("*.h")))
COMPILERS = ("c++", "g++", "clang++")
BUILD_SECONDS = 60.0
BUILD = ("-std=c++17", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC")
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""How kernels for a dtype end."""

Kernel = Callable[..., None]


@cache
def kernel_library(source: Path, arithmetic: tuple[str, ...]) -> ctypes.PyDLL | None:
    """What is built of `source` with these flags of the compiler; None where it cannot be built."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        log.info("no C++ compiler: plain torch does the work of our kernels")
        return None
    command, cached = [compiler, *BUILD, *arithmetic], LibraryCache(user_cache_folder())
    try:
        name = _name(command, source)
        return cached.load(name) or _build(command, source, name, cached)
    except (OSError, subprocess.SubprocessError) as error:
        log.info("the C++ compiler cannot build %s: plain torch does its work (%s)", source.name, error)
        return None


def _name(command: list[str], source: Path) -> str:
    """Stands for what the compiler builds here: the source, its version, and what "native" means to it."""
    told = _run([*command, "-###", "-E", "-x", "c++", os.devnull]).stderr
    texts = b"".join(path.read_bytes() for path in (source, *HEADERS))
    return f"{source.stem}-{sha256(texts + told).hexdigest()}.so"


def _build(command: list[str], source: Path, name: str, cached: LibraryCache) -> ctypes.PyDLL:
    with tempfile.TemporaryDirectory(prefix="enginewire-") as folder:
        target = Path(folder) / name
        _run([*command, "-o", str(target), str(source)])
        # The calls of a PyDLL are too short to be worth giving up the interpreter lock.
        library = ctypes.PyDLL(str(target))
        cached.store(name, target.read_bytes())
        return library


def _run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)  # noqa: S603  # ours

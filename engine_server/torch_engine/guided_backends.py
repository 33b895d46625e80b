"""The grammar libraries of an engine, and which of them takes a guide.

Knows nothing about any one library, or how a grammar is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from engine_server.failures import Unsupported
from engine_server.torch_engine.guided import CompiledGuide
from engine_server.torch_engine.guided_compiler import GrammarCompiler
from engine_server.torch_engine.guided_library import KINDS, Vocabulary
from engine_server.torch_engine.model_folder import ModelLoadError
from engine_server.torch_engine.params import Guide

FIELD = "sampling_options.guided_decoding"


class GuidedBackends:
    """The compilers of all libraries that are installed, the default one first."""

    def __init__(self, compilers: Mapping[str, GrammarCompiler]) -> None:
        self._compilers = compilers

    @property
    def names(self) -> list[str]:
        """What a request may name, the default first."""
        return list(self._compilers)

    @property
    def kinds(self) -> list[str]:
        """The kinds of guide that any of them can follow."""
        return list(dict.fromkeys(kind for name in self._compilers for kind in KINDS[name]))

    def compile(self, guide: Guide) -> Future[CompiledGuide]:
        """Never blocks. Raises Unsupported, QueueFull; the future raises InvalidRequest."""
        return self._compilers[self._name(guide)].compile(guide)

    def close(self) -> None:
        """End every compilation. Blocks until they have ended."""
        for compiler in self._compilers.values():
            compiler.close()

    def _name(self, guide: Guide) -> str:
        """The library that was asked for, else the first that can follow the guide."""
        if guide.backend and guide.backend not in self._compilers:
            raise Unsupported(
                f"{FIELD}.backend: must be one of {', '.join(self.names)}", field=f"{FIELD}.backend"
            )
        asked = [guide.backend] if guide.backend else self.names
        able = [name for name in asked if guide.kind in KINDS[name]]
        if not able:
            field = f"{FIELD}.{guide.kind}"
            raise Unsupported(f"{field}: not supported by {', '.join(asked)}", field=field)
        return able[0]


def open_backends(vocabulary: Vocabulary, default: str) -> GuidedBackends | None:
    """All libraries that are installed; None without any. Raises ModelLoadError when `default` is missing."""
    compilers: dict[str, GrammarCompiler] = {}
    for name in sorted(KINDS, key=lambda name: name != default):
        try:
            compilers[name] = GrammarCompiler(name, vocabulary)
        except ImportError:
            if name == default:
                raise ModelLoadError(f"guided_backend: {name} is not installed") from None
    return GuidedBackends(compilers) if compilers else None

"""What the folder of a model says of it, for what its server leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from enginewire import v1 as pb
from enginewire.server.engines.interface import Tokenizer
from enginewire.server.engines.remote.watch import NoUpstream
from enginewire.torch_engine.folder.folder import ModelFolder, ModelLoadError
from enginewire.torch_engine.folder.generation_config import read_generation_defaults
from enginewire.torch_engine.folder.source import DEMO, demo_path


@dataclass(frozen=True, slots=True)
class Model:
    """`vocab_size` counts the ids of its vocabulary, those that mean nothing included."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    default_sampling: pb.SamplingDefaults
    tokenizer: Tokenizer | None

    @classmethod
    def of(cls, name: str) -> Model | None:
        """Read the folder of that name, or `builtin:demo`; None for "". Raises NoUpstream."""
        if not name:
            return None
        try:
            folder = ModelFolder.open(demo_path() if name == DEMO else Path(name).expanduser())
            vocab_size = _vocab_size(folder)
            defaults = read_generation_defaults(folder, vocab_size)
            return cls(vocab_size, defaults.eos_token_ids, defaults.sampling(), folder.tokenizer())
        except (ModelLoadError, OSError) as error:
            raise NoUpstream(f"--model {name}: {error}") from error


def _vocab_size(folder: ModelFolder) -> int:
    text = folder.config.get("text_config")
    found = (text if isinstance(text, dict) else folder.config).get("vocab_size")
    if not isinstance(found, int) or found < 1:
        raise ModelLoadError(f"{folder.path / 'config.json'}: no vocab_size")
    return found

"""What a model folder says about embeddings, in the files that sentence-transformers writes.

Files that are missing or say something else count as silent. Knows nothing about torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from enginewire.torch_engine.folder.folder import Json, ModelFolder, ModelLoadError, read_json
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.pooling import Pooling, PoolingKind

POOLING_FILE: Final = "1_Pooling/config.json"
LENGTH_FILE: Final = "sentence_bert_config.json"
MODES: Final[Mapping[str, PoolingKind]] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}


def choose_pooling(options: TorchEngineOptions, folder: ModelFolder, *, is_encoder: bool) -> Pooling:
    """What was asked for, else what the folder says, else what is usual. Raises ModelLoadError."""
    kind = options.pooling
    if kind == "auto":
        kind = _stored_kind(folder) or ("mean" if is_encoder else "last")
    return Pooling(cast(PoolingKind, kind), options.normalize_embeddings)


def longest_input(folder: ModelFolder) -> int | None:
    """Tokens of the longest input that the model was made for. Raises ModelLoadError."""
    length = _read(folder, LENGTH_FILE).get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None


def _stored_kind(folder: ModelFolder) -> PoolingKind | None:
    stored = _read(folder, POOLING_FILE)
    modes = [mode for mode, is_used in stored.items() if mode.startswith("pooling_mode_") and is_used is True]
    if not modes:
        return None
    if len(modes) > 1 or modes[0] not in MODES:
        where = folder.path / POOLING_FILE
        raise ModelLoadError(f"{where}: {' and '.join(modes)} is not supported; choose another with pooling")
    return MODES[modes[0]]


def _read(folder: ModelFolder, name: str) -> Json:
    path = folder.path / name
    return read_json(path) if path.is_file() else {}

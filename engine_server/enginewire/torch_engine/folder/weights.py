"""Weights of a model folder: named tensors out of safetensors files, checked and converted to floats.

A file is mapped, not read as a whole. Knows nothing about layers or configurations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from enginewire.torch_engine.folder.folder import ModelFolder, ModelLoadError
from enginewire.torch_engine.folder.gguf import GgufModel
from enginewire.torch_engine.folder.quantized import Format, read_format

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class TensorSlice(Protocol):
    """A tensor that was not read yet."""

    def get_shape(self) -> list[int]:
        """Sizes of its dimensions."""
        ...


class TensorFile(Protocol):
    """The part of an open safetensors file used here; the library comes without types."""

    def keys(self) -> list[str]:
        """Names of the tensors."""
        ...

    def get_slice(self, name: str) -> TensorSlice:
        """What the header says about a tensor."""
        ...

    def get_tensor(self, name: str) -> Tensor:
        """Read a tensor."""
        ...


class Checkpoint:
    """Reads tensors by name, as `dtype` on `device`. Use inside `open_checkpoint`."""

    def __init__(
        self,
        handles: dict[Path, TensorFile],
        dtype: torch.dtype,
        device: torch.device,
        quantized: Format | None = None,
    ) -> None:
        self._handles = handles
        self._quantized = quantized
        self._dtype = dtype
        self._device = device
        self._file_of = dict(_names(handles))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def tensor(self, name: str, *shape: int) -> Tensor:
        """One tensor; raises ModelLoadError if it is missing or has another shape."""
        return self.stack([name], [shape[0]], *shape[1:])

    def stack(self, names: Seq[str], sizes: Seq[int], *rest: int) -> Tensor:
        """Tensors of shape [size, *rest] joined along their first dimension."""
        joined = torch.empty(sum(sizes), *rest, dtype=self._dtype, device=self._device)
        for part, name, size in zip(torch.split(joined, list(sizes)), names, sizes, strict=True):
            part.copy_(self._read(name, (size, *rest)))
        return joined

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        projection = name.removesuffix("weight")
        if self._quantized and f"{projection}{self._quantized.mark}" in self:
            return self._dequantized(self._quantized, projection, shape)
        file = self._file_of.get(name)
        if file is None:
            folder = next(iter(self._handles)).parent
            raise ModelLoadError(f"{folder}: no weight file holds the tensor {name}")
        handle = self._handles[file]
        found = tuple(handle.get_slice(name).get_shape())
        if found != shape:
            raise ModelLoadError(f"{file}: {name} has the shape {list(found)}, expected {list(shape)}")
        tensor = handle.get_tensor(name)
        if tensor.dtype not in FLOATS:
            raise ModelLoadError(f"{file}: {name} holds {tensor.dtype}, only plain floats are supported")
        return tensor

    def _dequantized(self, quantized: Format, projection: str, shape: tuple[int, ...]) -> Tensor:
        """The weight that the parts of a projection, whose names begin alike, stand for."""
        where = f"{self._file_of[projection + quantized.mark]}: {projection}*"
        try:
            tensor = quantized.floats(lambda part: self._part(projection + part))
        except KeyError as error:
            raise ModelLoadError(f"{where}: {error.args[0]} is missing") from error
        except (ValueError, IndexError, ArithmeticError, RuntimeError) as error:
            raise ModelLoadError(f"{where} cannot be read as quantised weights: {error}") from error
        if tensor.shape != shape:
            raise ModelLoadError(f"{where} has the shape {list(tensor.shape)}, expected {list(shape)}")
        return tensor

    def _part(self, name: str) -> Tensor | None:
        return self._handles[self._file_of[name]].get_tensor(name) if name in self else None


@contextmanager
def open_checkpoint(folder: ModelFolder, dtype: torch.dtype, device: torch.device) -> Iterator[Checkpoint]:
    """Map the weight files while the block runs; raises ModelLoadError for a broken one."""
    if isinstance(folder, GgufModel):
        yield Checkpoint({folder.path: folder.tensors}, dtype, device)
        return
    with ExitStack() as stack:
        handles: dict[Path, TensorFile] = {}
        for file in folder.weight_files():
            try:
                handles[file] = cast(TensorFile, stack.enter_context(safe_open(file, framework="pt")))
            except (SafetensorError, OSError, ValueError) as error:
                raise ModelLoadError(f"{file}: not a usable safetensors file ({error})") from error
        yield Checkpoint(handles, dtype, device, _format(folder))


def _format(folder: ModelFolder) -> Format | None:
    try:
        return read_format(folder.config)
    except ValueError as error:
        raise ModelLoadError(f"{folder.config_file}: quantization_config: {error}") from error


def _names(handles: dict[Path, TensorFile]) -> Iterator[tuple[str, Path]]:
    for file, handle in handles.items():
        for name in handle.keys():  # noqa: SIM118  # a TensorFile is no mapping
            yield name, file

"""The files of a tokenizer that an engine offers, checked against its manifest. Knows no channels."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Final

import grpc

from enginewire import v1 as pb
from enginewire.backend.engines.failure import failed, violation

MAX_TOKENIZER_BYTES: Final = 256 << 20


async def received(responses: AsyncIterator[pb.GetTokenizerResponse]) -> dict[str, bytes]:
    """The files by name. Raises RequestFailed."""
    manifest = pb.TokenizerManifest()
    files: dict[str, bytearray] = {}
    room = 0
    async for response in responses:
        if response.HasField("manifest"):
            manifest = response.manifest
            room = _size(manifest)
        else:
            room -= len(response.chunk.data)
            if room < 0:
                raise violation("a tokenizer larger than its manifest says")
            files.setdefault(response.chunk.name, bytearray()).extend(response.chunk.data)
    return {file.name: _checked(file, files.get(file.name, b"")) for file in manifest.files}


def _size(manifest: pb.TokenizerManifest) -> int:
    """Bytes of all files. Raises RequestFailed for more than a tokenizer can have."""
    total = sum(file.size for file in manifest.files)
    if total > MAX_TOKENIZER_BYTES:
        raise failed(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            pb.ERROR_REASON_TOO_LARGE,
            f"the engine's tokenizer has {total} bytes, allowed {MAX_TOKENIZER_BYTES}",
        )
    return total


def _checked(file: pb.TokenizerFile, data: bytes | bytearray) -> bytes:
    if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
        raise violation(f"the tokenizer file {file.name} differs from its manifest")
    return bytes(data)

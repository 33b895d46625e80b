"""A hand-off as bytes: a magic number, the size of the header, a header of JSON, then raw numbers.

The raw part holds, layer by layer, the keys and then the values of the first tokens of a prompt, each
[tokens, heads, dim]. Nothing in it is ever interpreted as anything but numbers. Knows nothing about files,
folders or torch.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Final, Self

MAGIC: Final = b"EWKV0001"
PREFIX: Final = struct.Struct("<8sI")
MAX_HEADER_BYTES: Final = 256 * 1024
"""Room for the shapes of thousands of layers."""


class MalformedHandoff(Exception):
    """Bytes that are no hand-off."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """What two engines must agree on before one can read what the other has computed.

    `model` is a digest of the weights and how they are used, `dtype` the type of the numbers of
    `item_bytes` each. `layers` has heads, size of a key and size of a value for each layer.
    """

    model: str
    dtype: str
    item_bytes: int
    layers: tuple[tuple[int, int, int], ...]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in all layers."""
        return self.item_bytes * sum(heads * (key + value) for heads, key, value in self.layers)

    def payload_bytes(self, num_tokens: int) -> int:
        """Bytes of the raw part for so many tokens."""
        return num_tokens * self.token_bytes

    @property
    def digest(self) -> str:
        """All of it as 64 hex digits."""
        return sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Header:
    """What a hand-off says about itself. `expires_at` is on the time.monotonic() clock of the host.

    `layout` and `prompt` are digests; `payload` is that of the raw part of `payload_bytes`.
    """

    layout: str
    prompt: str
    num_tokens: int
    expires_at: float
    payload_bytes: int
    payload: str

    def to_bytes(self) -> bytes:
        """Everything that comes before the raw part."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        return PREFIX.pack(MAGIC, len(text)) + text

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` made; raises MalformedHandoff."""
        try:
            fields = json.loads(data[PREFIX.size :])
            if not isinstance(fields, dict):
                raise MalformedHandoff("the header is not an object")
            header = cls(**fields)
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedHandoff("the header cannot be read") from error
        for name, kind in cls.__annotations__.items():
            if type(getattr(header, name)).__name__ != kind:
                raise MalformedHandoff(f"{name} has another type")
        return header


def header_size(prefix: bytes) -> int:
    """Bytes before the raw part, from the first PREFIX.size of them; raises MalformedHandoff."""
    if len(prefix) != PREFIX.size:
        raise MalformedHandoff("too short")
    magic, size = PREFIX.unpack(prefix)
    if magic != MAGIC or size > MAX_HEADER_BYTES:
        raise MalformedHandoff("no hand-off of this version")
    return PREFIX.size + int(size)

"""Seeds for servers out of the seed of a request."""

from __future__ import annotations

import hashlib
import struct

from enginewire import v1 as pb


def seed_of(options: pb.SamplingOptions, index: int, position: int = 0) -> int | None:
    """Of choice `index` from output `position` on, 63 bits; None for a request without a seed."""
    if not options.HasField("seed"):
        return None
    mixed = hashlib.blake2b(struct.pack("<QQQ", options.seed, index, position), digest_size=8).digest()
    return int.from_bytes(mixed, "little") >> 1

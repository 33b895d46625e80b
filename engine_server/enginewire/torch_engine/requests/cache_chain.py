"""Where the hashes of a sequence's blocks begin: what must be equal for two sequences to share any.

Knows nothing about blocks, caches or torch.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

DIGEST_BYTES = 32


def chain_root(cache_salt: str, adapter: str = "") -> bytes:
    """Where a chain of hashes begins; only sequences of equal roots share blocks.

    `adapter` is the `identity` of one: a name alone may come back with another content.
    The model is no part of it: a cache never outlives its model, and servers of one model should agree on
    the hashes however its folder is called.
    """
    salt, name = cache_salt.encode(), adapter.encode()
    lengths = struct.pack("<2Q", len(salt), len(name))
    return blake2b(lengths + salt + name, digest_size=DIGEST_BYTES, person=b"root").digest()

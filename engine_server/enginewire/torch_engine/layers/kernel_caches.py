"""How many kernels oneDNN keeps: it makes one for every number of rows that a product is ever asked for.

A kernel takes about half a MiB and half a millisecond, and torch and oneDNN keep 1024 each: 400 MiB and
more, which look like a leak while prompts of new lengths come in. Knows nothing about models.
"""

from __future__ import annotations

import os

VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""oneDNN's own and torch's."""
KERNELS = "256"
"""Four or five for each number of rows: about 50 numbers, more than the sizes of running decodes."""


def limit_kernel_caches() -> None:
    """Set the limits, unless the environment has its own. They are read at the first product of a process."""
    for variable in VARIABLES:
        os.environ.setdefault(variable, KERNELS)

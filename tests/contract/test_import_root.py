from __future__ import annotations

import subprocess
import sys

from enginewire import v1 as pb
from enginewire.v1 import revision

HEAVY = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "safetensors",
    "enginewire.server",
    "enginewire.backend",
)


def test_the_import_root_loads_nothing_heavy_and_nothing_of_ours() -> None:
    code = f"import sys; from enginewire import v1; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_import_root_has_every_message_enum_and_service() -> None:
    for file in revision.FILES:
        names = [*file.message_types_by_name, *file.enum_types_by_name]
        names += [f"{service}Stub" for service in file.services_by_name]
        names += [f"{service}Servicer" for service in file.services_by_name]
        names += [value for enum in file.enum_types_by_name.values() for value in enum.values_by_name]
        assert [name for name in names if not hasattr(pb, name)] == []

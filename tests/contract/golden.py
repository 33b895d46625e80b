"""The bytes of every message of the contract, one file per revision.

Run as a program to write the file of the current revision, once, together with the change that made it.
"""

from __future__ import annotations

import json
from pathlib import Path

from enginewire import v1 as pb
from tests.contract.populated import contract_messages, populated

FOLDER = Path(__file__).parent / "golden"


def path_of(revision: int) -> Path:
    """Where the bytes of a revision are kept."""
    return FOLDER / f"revision_{revision}.json"


def recorded(revision: int) -> dict[str, bytes]:
    """Message name → bytes, as committed."""
    return {name: bytes.fromhex(text) for name, text in json.loads(path_of(revision).read_text()).items()}


def current() -> dict[str, bytes]:
    """Message name → bytes, as this process serializes them."""
    return {
        message.full_name: populated(message).SerializeToString(deterministic=True)
        for message in contract_messages()
    }


if __name__ == "__main__":
    path = path_of(pb.CONTRACT_REVISION)
    path.write_text(json.dumps({name: data.hex() for name, data in current().items()}, indent=1) + "\n")

"""Makes the certificates with which the kit plays a stranger, and proves that it knows one.

    python .ci/make/certificates.py conformance/enginewire/conformance/wire/certificates

The keys are no secrets: nobody believes the authority but servers of the kit's own.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import trustme

NAME = "localhost"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 2, tzinfo=UTC)


def write(folder: Path) -> None:
    """An authority, two certificates of it and one that has expired; and one of another authority."""
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    leaves = {
        "server": authority.issue_cert(NAME),
        "caller": authority.issue_cert(NAME),
        "expired": authority.issue_cert(NAME, not_before=LONG_AGO[0], not_after=LONG_AGO[1]),
        "stranger": other.issue_cert(NAME),
    }
    for name, leaf in leaves.items():
        leaf.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")


if __name__ == "__main__":
    write(Path(sys.argv[1]))

"""Certificates in files, as an operator has them: authorities of a test, and what they have signed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import trustme

BEGIN, END = datetime(2001, 1, 1), datetime(2002, 1, 1)


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its key."""

    certificate: Path
    key: Path

    def replace_by(self, other: Signed) -> None:
        """As a tool for certificates does it: each file at once, one after the other."""
        for mine, new in ((self.certificate, other.certificate), (self.key, other.key)):
            copy = mine.with_suffix(".new")
            copy.write_bytes(new.read_bytes())
            os.replace(copy, mine)


class Authority:
    """Signs certificates and keeps them in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._authority = trustme.CA(organization_name=name)
        self._folder = folder
        self.file = folder / f"{name}.pem"
        self._authority.cert_pem.write_to_path(self.file)

    def signed(self, file: str, *names: str, is_expired: bool = False) -> Signed:
        """A new certificate for names, `localhost` and `127.0.0.1` unless others are given."""
        times = {"not_before": BEGIN, "not_after": END} if is_expired else {}
        made = self._authority.issue_cert(*(names or ("localhost", "127.0.0.1")), **times)
        signed = Signed(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        made.cert_chain_pems[0].write_to_path(signed.certificate)
        made.private_key_pem.write_to_path(signed.key)
        return signed

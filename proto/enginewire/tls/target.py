"""How a client of ours believes a server on TCP, and shows who it is itself. Knows nothing about options."""

from __future__ import annotations

from copy import copy
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from enginewire.files.watched import Stamps, WatchedFiles, stamps
from enginewire.tls.certificate import (
    CertificateFiles,
    InvalidCertificate,
    PemFiles,
    read_authorities,
)

PREFIX: Final = "--target-ssl-"
NAME_OPTION: Final = "grpc.ssl_target_name_override"
AUTHORITIES: Final = f"{PREFIX}ca-certs"


class TargetTls:
    """TLS towards the servers that a program of ours connects to."""

    def __init__(
        self,
        *,
        authorities: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        name: str = "",
    ) -> None:
        """PEM files: whom to trust (None: this machine's authorities), and what to show (None: nothing).

        `name` must be in the server's certificate in place of the host's. Raises InvalidCertificate.
        """
        self._trusted: WatchedFiles[bytes] | None = None
        if authorities is not None:
            read = partial(read_authorities, AUTHORITIES, authorities)
            self._trusted = WatchedFiles([authorities], read, "list of authorities", InvalidCertificate)
        self._files: CertificateFiles | None = None
        if certificate is not None:
            self._files = CertificateFiles(PemFiles(certificate, key or certificate, prefix=PREFIX), "client")
        self.options: tuple[tuple[str, str], ...] = ((NAME_OPTION, name),) if name else ()

    def named(self, name: str) -> TargetTls:
        """The same files; the certificate must have this name, unless another one was given."""
        other = copy(self)
        other.options = self.options or ((NAME_OPTION, name),)
        return other

    @property
    def certificate(self) -> CertificateFiles | None:
        """What is shown to servers; None for nothing."""
        return self._files

    @property
    def stamps(self) -> Stamps:
        """Other ones when a file has changed."""
        watched = (files for files in (self._trusted, self._files) if files is not None)
        return stamps(path for files in watched for path in files.paths)

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is opened now. Of files that cannot be used any more counts what they held."""
        trusted = self._trusted.current() if self._trusted else None
        if self._files is None:
            return grpc.ssl_channel_credentials(trusted)
        material = self._files.current()
        return grpc.ssl_channel_credentials(trusted, material.key, material.chain)

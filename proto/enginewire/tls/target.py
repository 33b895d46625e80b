"""How a client of ours believes a server on TCP, and shows who it is itself. Knows nothing about options."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import grpc

from enginewire.file_stamps import Stamps, stamps
from enginewire.tls.certificate import (
    CertificateFiles,
    InvalidCertificate,
    PemFiles,
    read_authorities,
)

log = logging.getLogger(__name__)

PREFIX: Final = "--target-ssl-"
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
        self._authorities = authorities
        self._trusted = None if authorities is None else read_authorities(AUTHORITIES, authorities)
        self._files: CertificateFiles | None = None
        if certificate is not None:
            self._files = CertificateFiles(PemFiles(certificate, key or certificate, prefix=PREFIX), "client")
        self.options: tuple[tuple[str, str], ...] = (("grpc.ssl_target_name_override", name),) if name else ()

    @property
    def stamps(self) -> Stamps:
        """Other ones when a file has changed."""
        own = self._files.files.paths if self._files else ()
        return stamps(own if self._authorities is None else (self._authorities, *own))

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is opened now. Of files that cannot be used any more counts what they held."""
        if self._authorities is not None:
            try:
                self._trusted = read_authorities(AUTHORITIES, self._authorities)
            except InvalidCertificate as error:
                log.warning("the authorities from before stay in use: %s", error)
        if self._files is None:
            return grpc.ssl_channel_credentials(self._trusted)
        material = self._files.current()
        return grpc.ssl_channel_credentials(self._trusted, material.key, material.chain)

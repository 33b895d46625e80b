"""How a client of ours believes a server on TCP, and shows who it is itself. Knows nothing about options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

from enginewire.tls.certificate import CertificateFiles, PemFiles, read_authorities

PREFIX: Final = "--target-ssl-"


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
        self._files: CertificateFiles | None = None
        if certificate is not None:
            self._files = CertificateFiles(PemFiles(certificate, key or certificate, prefix=PREFIX), "client")
        self.options: tuple[tuple[str, str], ...] = (("grpc.ssl_target_name_override", name),) if name else ()
        self.credentials()

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel that is opened now. Raises InvalidCertificate."""
        trusted = None
        if self._authorities is not None:
            trusted = read_authorities(f"{PREFIX}ca-certs", self._authorities)
        if self._files is None:
            return grpc.ssl_channel_credentials(trusted)
        material = self._files.current()
        return grpc.ssl_channel_credentials(trusted, material.key, material.chain)

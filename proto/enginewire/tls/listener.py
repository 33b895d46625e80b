"""How servers of ours show who they are, and which callers they let in: one value for all that listen on TCP.

Knows nothing about options and RPCs.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import grpc

from enginewire.tls.certificate import CertificateFiles, InvalidCertificate, Material, server_context

ANY_BELOW: Final = "*."
REFUSAL: Final = "no name of your certificate is allowed here"


class ListenerTls:
    """TLS of the servers of one process. Files that change are read again before the next handshake."""

    def __init__(
        self, files: CertificateFiles, *, requires_client: bool = False, allowed_names: Iterable[str] = ()
    ) -> None:
        """With `requires_client` only callers with a certificate of the files' authorities get in.

        `allowed_names`: such a certificate must have one of them as a name (SAN); without any each will do.
        """
        self.files = files
        self.requires_client = requires_client
        self._names = frozenset(allowed_names)
        self._suffixes = tuple(name[1:] for name in self._names if name.startswith(ANY_BELOW))

    def allows(self, names: Iterable[str]) -> bool:
        """True for a caller whose certificate has these names."""
        return not self._names or any(
            name in self._names or name.endswith(self._suffixes or ("\0",)) for name in names
        )

    def allows_peer(self, certificate: Mapping[str, object] | None) -> bool:
        """As `allows`, for what `getpeercert` of Python's ssl gives."""
        return self.allows(names_of(certificate))

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For a port of gRPC."""
        material = self.files.current()
        fetch = _Fetcher(self.files, material, self._configuration)
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(material),
            fetch,  # type: ignore[arg-type]  # the stubs do not know that None means no change
            self.requires_client,
        )

    def _configuration(self, material: Material) -> grpc.ServerCertificateConfiguration:
        authorities = material.authorities if self.requires_client else None
        return grpc.ssl_server_certificate_configuration([(material.key, material.chain)], authorities)

    def ssl_context(self) -> ssl.SSLContext:
        """For a server on Python's own TLS."""
        used = self.files.current()
        context = first = self._context()

        def choose(handshake: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
            nonlocal used, context
            material = self.files.current()
            if material is not used:
                try:
                    used, context = material, self._context()
                except InvalidCertificate:
                    return  # changed once more, and the next handshake will tell
            # Certificate, key and authorities come with it; what is asked of callers is as it was.
            handshake.context = context

        # Called in each handshake, also when a caller gives no name.
        first.sni_callback = choose
        return first

    def _context(self) -> ssl.SSLContext:
        return server_context(self.files.files, requires_client=self.requires_client)


def names_of(certificate: Mapping[str, object] | None) -> list[str]:
    """The alternative names in what `getpeercert` of Python's ssl gives."""
    pairs = (certificate or {}).get("subjectAltName", ())
    assert isinstance(pairs, tuple), "as ssl documents it"
    return [str(value) for _, value in pairs]


class _Fetcher:
    """Asked by gRPC in a thread of its own before each handshake; None is what it has already."""

    def __init__(
        self,
        files: CertificateFiles,
        material: Material,
        configuration: Callable[[Material], grpc.ServerCertificateConfiguration],
    ) -> None:
        self._files = files
        self._material = material
        self._configuration = configuration

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        material = self._files.current()
        if material is self._material:
            return None
        self._material = material
        return self._configuration(material)

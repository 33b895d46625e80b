"""The options by which servers of ours get TLS. The names are vLLM's.

Each program declares them in a dataclass of its own, with the functions here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Protocol

from enginewire.options import OptionError, option

if TYPE_CHECKING:
    from enginewire.tls.listener import ListenerTls

CertReqs = Literal["none", "required", "0", "2"]
"""Whether callers need a certificate; the numbers are those of Python's ssl, which vLLM takes."""
REQUIRED: Final = ("required", "2")


class ListenerOptions(Protocol):
    """What a program's options have that declares these."""

    @property
    def ssl_certfile(self) -> Path | None: ...  # noqa: D102
    @property
    def ssl_keyfile(self) -> Path | None: ...  # noqa: D102
    @property
    def ssl_ca_certs(self) -> Path | None: ...  # noqa: D102
    @property
    def ssl_cert_reqs(self) -> CertReqs | None: ...  # noqa: D102
    @property
    def ssl_allowed_client_names(self) -> tuple[str, ...]: ...  # noqa: D102


def certfile_option() -> Path | None:
    """`ssl_certfile`."""
    return option(
        None,
        "serve TLS on every TCP port, with this certificate and its chain (PEM); read again when it changes",
        heading="TLS",
    )


def keyfile_option() -> Path | None:
    """`ssl_keyfile`."""
    return option(None, "key of --ssl-certfile (PEM), without a passphrase; in the same file when not set")


def ca_certs_option() -> Path | None:
    """`ssl_ca_certs`."""
    return option(None, "let in callers alone that have a certificate of these authorities (PEM)")


def cert_reqs_option() -> CertReqs | None:
    """`ssl_cert_reqs`."""
    return option(
        None, "whether callers need a certificate; required when --ssl-ca-certs is given, else none"
    )


def allowed_client_names_option() -> tuple[str, ...]:
    """`ssl_allowed_client_names`."""
    names: tuple[str, ...] = ()
    return option(
        names,
        "name that a caller's certificate must have among its alternative names, such as"
        " backend.example.org, *.example.org or spiffe://example.org/backend; any will do when not set",
    )


def health_port_option() -> int | None:
    """`health_port`."""
    return option(
        None,
        "serve grpc.health.v1 alone at this port of --health-host, without TLS; 0 picks a free one and"
        " prints it",
        at_least=0,
        at_most=65535,
        heading="probes",
    )


def health_host_option() -> str:
    """`health_host`."""
    return option("127.0.0.1", "where --health-port is; nothing but the state is told there")


def requires_client(options: ListenerOptions) -> bool:
    """Callers need a certificate."""
    if options.ssl_cert_reqs is None:
        return options.ssl_ca_certs is not None
    return options.ssl_cert_reqs in REQUIRED


def listener_tls(options: ListenerOptions) -> ListenerTls | None:
    """The TLS that the options ask for. Raises OptionError, also for files that cannot be used."""
    if options.ssl_certfile is None:
        _check_no_other(options)
        return None
    # Without TLS the modules behind this need not be loaded.
    from enginewire.tls.certificate import CertificateFiles, InvalidCertificate, PemFiles
    from enginewire.tls.listener import ListenerTls

    is_mutual = requires_client(options)
    if is_mutual and options.ssl_ca_certs is None:
        raise OptionError("--ssl-cert-reqs: required needs --ssl-ca-certs, the authorities of callers")
    if options.ssl_allowed_client_names and not is_mutual:
        raise OptionError("--ssl-allowed-client-names needs --ssl-ca-certs, the authorities of callers")
    key = options.ssl_keyfile or options.ssl_certfile
    try:
        files = CertificateFiles(PemFiles(options.ssl_certfile, key, options.ssl_ca_certs), "server")
    except InvalidCertificate as error:
        raise OptionError(str(error)) from error
    return ListenerTls(files, requires_client=is_mutual, allowed_names=options.ssl_allowed_client_names)


def _check_no_other(options: ListenerOptions) -> None:
    """Raise OptionError for what means nothing without a certificate."""
    for flag, is_given in (
        ("--ssl-keyfile", options.ssl_keyfile is not None),
        ("--ssl-ca-certs", options.ssl_ca_certs is not None),
        ("--ssl-cert-reqs", requires_client(options)),
        ("--ssl-allowed-client-names", bool(options.ssl_allowed_client_names)),
    ):
        if is_given:
            raise OptionError(f"{flag} needs --ssl-certfile, the certificate to serve TLS with")

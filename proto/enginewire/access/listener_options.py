"""The options by which servers of ours listen: where, with which TLS and which keys. The names are vLLM's."""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from enginewire.access.access import Access
from enginewire.access.api_keys import ApiKeys
from enginewire.access.audit import AuditLog
from enginewire.access.known_callers import InvalidKeys
from enginewire.addresses import listens_on_loopback
from enginewire.options import OptionError, option

if TYPE_CHECKING:
    from enginewire.tls.listener import ListenerTls

CertReqs = Literal["none", "required", "0", "2"]
"""Whether callers need a certificate; the numbers are those of Python's ssl, which vLLM takes."""
REQUIRED: Final = ("required", "2")


@dataclass(frozen=True, kw_only=True)
class ListenerOptions:
    """What every program that listens takes. Each has defaults of its own for `uds` and `host`.

    Without slots: the options of a program have other ancestors beside this one.
    """

    uds: Path = option(Path(), "Unix socket to listen on, readable by its owner only", heading="address")
    host: str = option("127.0.0.1", "listen on TCP at this host")
    port: int | None = option(
        None, "listen on TCP at this port; 0 picks a free one and prints it", at_least=0, at_most=65535
    )
    allow_insecure: bool = option(
        False,
        "allow an address beyond loopback where anyone can send requests, and without TLS read prompts",
    )
    ssl_certfile: Path | None = option(
        None,
        "serve TLS on every TCP port, with this certificate and its chain (PEM); read again when it changes",
        heading="TLS",
    )
    ssl_keyfile: Path | None = option(
        None, "key of --ssl-certfile (PEM), without a passphrase; in the same file when not set"
    )
    ssl_ca_certs: Path | None = option(
        None, "let in callers alone that have a certificate of these authorities (PEM)"
    )
    ssl_cert_reqs: CertReqs | None = option(
        None, "whether callers need a certificate; required when --ssl-ca-certs is given, else none"
    )
    ssl_allowed_client_names: tuple[str, ...] = option(
        (),
        "name that a caller's certificate must have among its alternative names, such as"
        " backend.example.org, *.example.org or spiffe://example.org/backend; any will do when not set",
    )
    api_key: tuple[str, ...] = option(
        (),
        "key of which callers need one: KEY, whose role is infer, or ROLE:KEY, with a role of read, infer or"
        " admin; others see it in the process list, so better in the environment or in --api-key-file",
        heading="keys",
        secret=True,
    )
    api_key_file: Path | None = option(
        None,
        "file with a caller per line: the hash of a key, as infer sha256:<hexadecimal>, or the name of a"
        " certificate or tenant, with its weight and limits; read again when it changes",
    )
    audit_log: str = option(
        "",
        "file to append a JSON line per call to: who, what, how it ended, how much; never text or keys; - is"
        " standard output",
        heading="keys",
    )
    health_port: int | None = option(
        None,
        "serve grpc.health.v1 alone at this port of --health-host, without TLS; 0 picks a free one and"
        " prints it",
        at_least=0,
        at_most=65535,
        heading="probes",
    )
    health_host: str = option("127.0.0.1", "where --health-port is; nothing but the state is told there")

    @property
    def requires_client(self) -> bool:
        """Callers need a certificate."""
        if self.ssl_cert_reqs is None:
            return self.ssl_ca_certs is not None
        return self.ssl_cert_reqs in REQUIRED


def audit_log_of(options: ListenerOptions) -> AuditLog | None:
    """Raises OptionError for a file that cannot be opened."""
    try:
        return AuditLog(options.audit_log) if options.audit_log else None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionError(f"--audit-log: {options.audit_log}: {reason}") from error


def check_listener(options: ListenerOptions) -> None:
    """Raise OptionError for files that cannot be used, and for options that mean nothing together."""
    access_of(options)
    if (audit := audit_log_of(options)) is not None:
        audit.close()


def access_of(options: ListenerOptions) -> Access:
    """Who the options let in. Raises OptionError, also for files that cannot be used."""
    access = Access(listener_tls(options), keys := _keys_of(options))
    if keys and keys.known.certificates and not (options.requires_client and options.ssl_certfile):
        raise OptionError("--api-key-file: certificates need --ssl-ca-certs, the authorities of callers")
    return access


def listener_tls(options: ListenerOptions) -> ListenerTls | None:
    """The TLS that the options ask for. Raises OptionError, also for files that cannot be used."""
    if options.ssl_certfile is None:
        _check_no_other(options)
        return None
    # Without TLS the modules behind this need not be loaded.
    from enginewire.tls.certificate import CertificateFiles, InvalidCertificate, PemFiles
    from enginewire.tls.listener import ListenerTls

    is_mutual = options.requires_client
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
        ("--ssl-cert-reqs", options.requires_client),
        ("--ssl-allowed-client-names", bool(options.ssl_allowed_client_names)),
    ):
        if is_given:
            raise OptionError(f"{flag} needs --ssl-certfile, the certificate to serve TLS with")


def _keys_of(options: ListenerOptions) -> ApiKeys | None:
    if not options.api_key and options.api_key_file is None:
        return None
    try:
        return ApiKeys(options.api_key, options.api_key_file)
    except InvalidKeys as error:
        raise OptionError(str(error)) from error


def check_exposure(flag: str, host: str, options: ListenerOptions) -> None:
    """Raise OptionError when anyone beyond this machine could send requests to `host`, or read along.

    The one rule for all that listens: loopback, or TLS with keys or with certificates of callers, or a word
    that says so.
    """
    keys = _keys_of(options)
    has_keys = keys is not None and bool(keys.are_needed)
    is_closed = options.ssl_certfile is not None and (has_keys or options.requires_client)
    if is_closed or options.allow_insecure or listens_on_loopback(host):
        return
    could = [] if options.ssl_certfile else ["read prompts and keys" if has_keys else "read prompts"]
    could += [] if has_keys else ["send requests"]
    raise OptionError(
        f"{flag}: whoever reaches a host beyond loopback could {' and '.join(could)}; use 127.0.0.1 or a Unix"
        " socket, give --ssl-certfile with --ssl-ca-certs or --api-key-file, or say --allow-insecure"
    )

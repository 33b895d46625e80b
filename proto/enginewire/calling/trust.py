"""Which servers a program of ours believes, and what it brings to them: one value for Unix sockets and TCP.

Knows nothing about gRPC, so that options can be read without it.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enginewire.access.known_callers import InvalidKeys
from enginewire.access.target_key import TargetKey
from enginewire.files.trusted_paths import check_socket, user_id
from enginewire.options import OptionError, option

if TYPE_CHECKING:
    from enginewire.tls.target import TargetTls


@dataclass(frozen=True, slots=True)
class Trust:
    """What makes a server believed: on a Unix socket its owner, over TCP the certificate that it shows.

    `socket_owner` is another user, besides this one and root. Without `tls` TCP is plain. `api_key` goes to
    every server, believed or not: over plain TCP whoever listens reads it.
    """

    socket_owner: int | None = None
    tls: TargetTls | None = None
    api_key: TargetKey | None = None

    def check(self, target: str) -> None:
        """Raise UntrustedPath for a Unix socket that somebody else has made."""
        scheme, _, path = target.partition(":")
        if scheme == "unix":
            check_socket(Path(path.removeprefix("//")), self.socket_owner)

    def named(self, name: str) -> Trust:
        """The same for a server that is reached by its address, and whose certificate has this name."""
        return replace(self, tls=self.tls.named(name)) if self.tls is not None and name else self


THIS_USER: Final = Trust()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """What every program takes that connects. Each describes `target` itself.

    The others begin with `--target-`, for whoever connects may listen as well.
    """

    target: str | tuple[str, ...] = option("", "what to connect to", heading="target")
    socket_owner: str = option(
        "",
        "another user, besides this one and root, who may own a target's Unix socket: a name or a number",
        heading="trust in targets",
    )
    target_ssl: bool = option(
        False, "use TLS for targets on TCP; on as soon as one of the options that begin so is given"
    )
    target_ssl_ca_certs: Path | None = option(
        None, "authorities of the target's certificate (PEM); this machine's when not set"
    )
    target_ssl_certfile: Path | None = option(None, "certificate to show to the target, with its chain (PEM)")
    target_ssl_keyfile: Path | None = option(
        None, "its key (PEM), without a passphrase; in the same file when not set"
    )
    target_ssl_name: str = option(
        "", "name that the target's certificate must have; the host of the target when not set"
    )
    target_api_key: str = option(
        "",
        "API key to bring to targets; others see it in the process list, so better in the environment or in"
        " --target-api-key-file",
        secret=True,
    )
    target_api_key_file: Path | None = option(
        None, "file that holds this key and nothing else; read again when it changes"
    )


def trust_of(options: TargetOptions) -> Trust:
    """Whom the options say to believe. Raises OptionError, also for files that cannot be used."""
    return Trust(user_id(options.socket_owner), _target_tls(options), target_key(options))


def _target_tls(options: TargetOptions) -> TargetTls | None:
    given = (options.target_ssl_ca_certs, options.target_ssl_certfile, options.target_ssl_keyfile)
    if not (options.target_ssl or options.target_ssl_name or any(given)):
        return None
    if options.target_ssl_keyfile and not options.target_ssl_certfile:
        raise OptionError("--target-ssl-keyfile needs --target-ssl-certfile, the certificate of that key")
    # Without TLS the modules behind this need not be loaded.
    from enginewire.tls.certificate import InvalidCertificate
    from enginewire.tls.target import TargetTls

    try:
        return TargetTls(
            authorities=options.target_ssl_ca_certs,
            certificate=options.target_ssl_certfile,
            key=options.target_ssl_keyfile,
            name=options.target_ssl_name,
        )
    except InvalidCertificate as error:
        raise OptionError(str(error)) from error


def target_key(options: TargetOptions) -> TargetKey | None:
    """The key that the options say to bring. Raises OptionError."""
    if not options.target_api_key and options.target_api_key_file is None:
        return None
    try:
        return TargetKey(options.target_api_key, options.target_api_key_file)
    except InvalidKeys as error:
        raise OptionError(str(error)) from error

"""The options by which programs of ours reach servers on TLS.

They begin with `--target-`, for whoever connects may listen as well. Each program declares them in a
dataclass of its own, with the functions here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from enginewire.options import OptionError, option

if TYPE_CHECKING:
    from enginewire.tls.target import TargetTls


class TargetOptions(Protocol):
    """What a program's options have that declares these."""

    @property
    def target_ssl(self) -> bool: ...  # noqa: D102
    @property
    def target_ssl_ca_certs(self) -> Path | None: ...  # noqa: D102
    @property
    def target_ssl_certfile(self) -> Path | None: ...  # noqa: D102
    @property
    def target_ssl_keyfile(self) -> Path | None: ...  # noqa: D102
    @property
    def target_ssl_name(self) -> str: ...  # noqa: D102


def ssl_option() -> bool:
    """`target_ssl`."""
    return option(
        False,
        "use TLS for targets on TCP; on as soon as one of the options that begin so is given",
        heading="TLS of targets",
    )


def ca_certs_option() -> Path | None:
    """`target_ssl_ca_certs`."""
    return option(None, "authorities of the target's certificate (PEM); this machine's when not set")


def certfile_option() -> Path | None:
    """`target_ssl_certfile`."""
    return option(None, "certificate to show to the target, with its chain (PEM)")


def keyfile_option() -> Path | None:
    """`target_ssl_keyfile`."""
    return option(None, "its key (PEM), without a passphrase; in the same file when not set")


def name_option() -> str:
    """`target_ssl_name`."""
    return option("", "name that the target's certificate must have; the host of the target when not set")


def target_tls(options: TargetOptions) -> TargetTls | None:
    """The TLS that the options ask for. Raises OptionError, also for files that cannot be used."""
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

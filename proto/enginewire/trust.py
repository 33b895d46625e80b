"""Which servers a program of ours believes, and what it brings to them: one value for Unix sockets and TCP.

Knows nothing about gRPC, so that options can be read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from enginewire.access.api_keys import InvalidKeys
from enginewire.access.target_key import TargetKey
from enginewire.options import OptionError, option
from enginewire.tls.target_options import TargetOptions, target_tls
from enginewire.trusted_paths import check_socket, user_id

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


THIS_USER: Final = Trust()


class TrustOptions(TargetOptions, Protocol):
    """What the options of a program have that connects."""

    @property
    def socket_owner(self) -> str: ...  # noqa: D102
    @property
    def target_api_key(self) -> str: ...  # noqa: D102
    @property
    def target_api_key_file(self) -> Path | None: ...  # noqa: D102


def socket_owner_option() -> str:
    """`socket_owner`."""
    return option(
        "", "another user, besides this one and root, who may own an engine's Unix socket: a name or a number"
    )


def target_api_key_option() -> str:
    """`target_api_key`."""
    return option(
        "",
        "API key to bring to targets; others see it in the process list, so better in the environment or in"
        " --target-api-key-file",
        secret=True,
    )


def target_api_key_file_option() -> Path | None:
    """`target_api_key_file`."""
    return option(None, "file that holds this key and nothing else; read again when it changes")


def trust_of(options: TrustOptions) -> Trust:
    """Whom the options say to believe. Raises OptionError, also for files that cannot be used."""
    return Trust(user_id(options.socket_owner), target_tls(options), target_key(options))


def target_key(options: TrustOptions) -> TargetKey | None:
    """The key that the options say to bring. Raises OptionError."""
    if not options.target_api_key and options.target_api_key_file is None:
        return None
    try:
        return TargetKey(options.target_api_key, options.target_api_key_file)
    except InvalidKeys as error:
        raise OptionError(str(error)) from error

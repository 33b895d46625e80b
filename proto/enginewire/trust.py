"""Which servers a program of ours believes: one value for Unix sockets and for TCP.

Knows nothing about gRPC, so that options can be read without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from enginewire.options import option
from enginewire.tls.target_options import TargetOptions, target_tls
from enginewire.trusted_paths import check_socket, user_id

if TYPE_CHECKING:
    from enginewire.tls.target import TargetTls


@dataclass(frozen=True, slots=True)
class Trust:
    """What makes a server believed: on a Unix socket its owner, over TCP the certificate that it shows.

    `socket_owner` is another user, besides this one and root. Without `tls` TCP is plain.
    """

    socket_owner: int | None = None
    tls: TargetTls | None = None

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


def socket_owner_option() -> str:
    """`socket_owner`."""
    return option(
        "", "another user, besides this one and root, who may own an engine's Unix socket: a name or a number"
    )


def trust_of(options: TrustOptions) -> Trust:
    """Whom the options say to believe. Raises OptionError, also for files that cannot be used."""
    return Trust(user_id(options.socket_owner), target_tls(options))

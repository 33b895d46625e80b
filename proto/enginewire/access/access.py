"""Who gets into the servers of one process, and what each caller may do there: the one rule of all faces.

Knows nothing about gRPC and HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from enginewire.access.api_keys import ApiKeys
from enginewire.access.caller import ANYBODY, Caller
from enginewire.access.roles import Role

if TYPE_CHECKING:
    from enginewire.tls.listener import ListenerTls

BEARER: Final = "bearer"


class Denied(Exception):
    """The message is for the caller, and the same whatever was wrong with its key."""


class Unknown(Denied):
    """Who does not say who it is, or not truly."""


class Forbidden(Denied):
    """Who is known and may not do this."""


@dataclass(frozen=True, slots=True)
class Access:
    """`keys` is None where none are needed. Without `tls` TCP is plain."""

    tls: ListenerTls | None = None
    keys: ApiKeys | None = None

    @property
    def on_socket(self) -> Access:
        """The same at a Unix socket, which never speaks TLS."""
        return replace(self, tls=None)

    @property
    def tells_certificates_apart(self) -> bool:
        """Callers have certificates, and it counts whose."""
        return self.tls is not None and self.tls.requires_client

    def caller_with(self, credentials: Iterable[str], role: Role) -> Caller:
        """Who brings exactly this, for what needs `role`. Raises Denied."""
        if self.keys is None:
            return ANYBODY
        brought = set(credentials)
        if not brought:
            raise Unknown("an API key is needed: authorization: Bearer KEY")
        key = self.keys.find(brought.pop()) if len(brought) == 1 else None
        if key is None:
            raise Unknown("incorrect API key")
        if key.role < role:
            raise Forbidden(f"this needs the role {role.word}; your key has {key.role.word}")
        return Caller(f"key {key.digest.hex()}", is_admin=key.role is Role.ADMIN)


OPEN: Final = Access()
"""Who reaches it may do everything."""


def bearer(values: Iterable[str]) -> list[str]:
    """The keys in values of `authorization`; what is none counts as a wrong one."""
    return [_bearer(value) for value in values]


def _bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    return key if scheme.lower() == BEARER else ""


def with_certificate(caller: Caller, names: Iterable[str]) -> Caller:
    """The same, known by the names in its certificate where no key has said more."""
    if caller is not ANYBODY:
        return caller
    return Caller(f"certificate {' '.join(sorted(names))}", is_admin=False)

"""Who gets into the servers of one process, and what each caller may do there: the one rule of all faces.

Knows nothing about gRPC and HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from enginewire.access.allowance import UNBOUNDED
from enginewire.access.api_keys import ApiKeys
from enginewire.access.caller import ANYBODY, OTHER, Caller, Party
from enginewire.access.known_callers import ANY_TENANT, ApiKey, KnownCallers
from enginewire.access.roles import Role

if TYPE_CHECKING:
    from enginewire.tls.listener import ListenerTls

BEARER: Final = "bearer"
KEY_IDENTITY: Final = "key "
TENANT_KEY: Final = "enginewire-tenant"
"""Metadata of a call: in whose name a backend makes it."""


class Denied(Exception):
    """The message is for the caller, and the same whatever was wrong with its key."""


class Unknown(Denied):
    """Who does not say who it is, or not truly."""


class Forbidden(Denied):
    """Who is known and may not do this."""


@dataclass(frozen=True, slots=True)
class Access:
    """`keys` is None where no caller is known by name. Without `tls` TCP is plain."""

    tls: ListenerTls | None = None
    keys: ApiKeys | None = None
    refused: Counter[str] = field(default_factory=Counter)
    """Calls by why they were refused, for metrics."""

    def count(self, denied: Denied) -> None:
        """A call is refused."""
        self.refused["unauthenticated" if isinstance(denied, Unknown) else "permission_denied"] += 1

    @property
    def on_socket(self) -> Access:
        """The same at a Unix socket, which never speaks TLS."""
        return replace(self, tls=None)

    @property
    def needs_key(self) -> bool:
        """Callers without a key are refused."""
        return self.keys is not None and bool(self.keys.are_needed)

    @property
    def tells_certificates_apart(self) -> bool:
        """Callers have certificates, and it counts whose."""
        return self.tls is not None and self.tls.requires_client

    @property
    def num_parties(self) -> int:
        """How many callers are known to share the server, as far as it was told."""
        known = self._known
        names = {key.name or key.digest for key in known.keys if key.role >= Role.INFER}
        return len(names) + len(known.certificates) + len(known.tenants)

    @property
    def _known(self) -> KnownCallers:
        return self.keys.known if self.keys else NO_CALLERS

    def caller_with(self, credentials: Iterable[str], role: Role) -> Caller:
        """Who brings exactly this, for what needs `role`. Raises Denied."""
        if self.keys is None or not self.keys.are_needed:
            return ANYBODY
        brought = set(credentials)
        if not brought:
            raise Unknown("an API key is needed: authorization: Bearer KEY")
        key = self.keys.find(brought.pop()) if len(brought) == 1 else None
        if key is None:
            raise Unknown("incorrect API key")
        _check_role(key.role, role, "your key")
        return _caller_of(key)

    def with_certificate(self, caller: Caller, names: Iterable[str], role: Role) -> Caller:
        """The same, known by the names in its certificate where no key has said more. Raises Forbidden."""
        if caller is not ANYBODY:
            return caller
        sorted_names = sorted(names)
        identity = f"certificate {' '.join(sorted_names)}"
        known = self._known.certificates
        listed = next((known[name] for name in sorted_names if name in known), None)
        if listed is None:
            return Caller(identity, is_admin=False, party=Party(identity, tenant=_unnamed(identity)))
        _check_role(listed.role, role, "your certificate")
        party = Party(f"name {listed.name}", listed.name, listed.allowance, listed.name)
        return Caller(identity, listed.role is Role.ADMIN, party, listed.names_tenants)

    def party_of(self, caller: Caller, tenant: str = "") -> Party:
        """In whose name a request comes: the tenant's that a trusted caller names, else the caller's own.

        Raises Unknown for a caller whose key has been taken away since it called.
        """
        current = self._current(caller)
        if not tenant or not current.names_tenants:
            return current.party
        tenants = self._known.tenants
        allowance = tenants.get(tenant, tenants.get(ANY_TENANT, UNBOUNDED))
        return Party(f"tenant {tenant}", tenant if tenant in tenants else OTHER, allowance, tenant)

    def _current(self, caller: Caller) -> Caller:
        """What is known of a caller now, whose stream may have been open for long."""
        if not self.needs_key or not caller.identity.startswith(KEY_IDENTITY):
            return caller
        digest = bytes.fromhex(caller.identity.removeprefix(KEY_IDENTITY))
        key = next((each for each in self._known.keys if each.digest == digest), None)
        if key is None:
            raise Unknown("incorrect API key")
        _check_role(key.role, Role.INFER, "your key")
        return _caller_of(key)


NO_CALLERS: Final = KnownCallers()


def _caller_of(key: ApiKey) -> Caller:
    identity = f"{KEY_IDENTITY}{key.digest.hex()}"
    if key.name:
        party = Party(f"name {key.name}", key.name, key.allowance, key.name)
    else:
        party = Party(identity, OTHER, key.allowance, _unnamed(identity))
    return Caller(identity, key.role is Role.ADMIN, party, key.names_tenants)


def _unnamed(identity: str) -> str:
    """The same word for the same caller, from which nobody finds its key or its name."""
    return f"unnamed-{sha256(identity.encode()).hexdigest()[:16]}"


def _check_role(has: Role, needs: Role, what: str) -> None:
    if has < needs:
        raise Forbidden(f"this needs the role {needs.word}; {what} has {has.word}")


OPEN: Final = Access()
"""Who reaches it may do everything."""


def bearer(values: Iterable[str]) -> list[str]:
    """The keys in values of `authorization`; what is none counts as a wrong one."""
    return [_bearer(value) for value in values]


def _bearer(value: str) -> str:
    scheme, _, key = value.partition(" ")
    return key if scheme.lower() == BEARER else ""

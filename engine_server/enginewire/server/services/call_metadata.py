"""The reserved metadata keys of a call, folded into the request they belong to, and in whose name it comes.

A key and the body field it stands for may both be set only when they agree. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from enginewire import v1 as pb
from enginewire.access.access import TENANT_KEY, Access, Denied, Unknown
from enginewire.access.caller import Party, caller
from enginewire.access.known_callers import NAME, NAME_WORDS
from enginewire.server.admission.origin import Origin
from enginewire.server.failures import InvalidRequest, NotAllowed, NotKnown
from enginewire.tracing.trace_context import passed_on

# metadata key → (field of RoutingHints, its type, what is allowed)
KEYS: Final[Mapping[str, tuple[str, Callable[[str], int | str], str]]] = {
    "enginewire-dp-rank": ("dp_rank", int, "0..4294967295"),
    "enginewire-priority": ("priority", int, "-2147483648..2147483647"),
    "enginewire-routing-key": ("routing_key", str, "text"),
}


def apply_metadata(request: pb.GenerateRequest, metadata: Mapping[str, str]) -> None:
    """Set routing hints from metadata. Raises InvalidRequest that names the key."""
    _apply_all(request.request.routing, metadata)


def routing_of(metadata: Mapping[str, str]) -> pb.RoutingHints:
    """The routing hints of a request that has no field for them. Raises as `apply_metadata`."""
    routing = pb.RoutingHints()
    _apply_all(routing, metadata)
    return routing


def origin_of(access: Access, metadata: Mapping[str, str]) -> Origin:
    """Where the current caller's request comes from. Raises as `party_of`."""
    return Origin(party_of(access, metadata), passed_on(metadata))


def party_of(access: Access, metadata: Mapping[str, str]) -> Party:
    """In whose name the current caller's request comes. Raises InvalidRequest, and NotKnown for a key that is
    gone.

    A tenant counts where the caller may name one; from others it is a key like any that is not known.
    """
    tenant = metadata.get(TENANT_KEY, "")
    if tenant and caller().names_tenants and not NAME.fullmatch(tenant):
        raise InvalidRequest(f"{TENANT_KEY}: got {tenant[:64]!a}, allowed {NAME_WORDS}", field=TENANT_KEY)
    try:
        return access.party_of(caller(), tenant)
    except Unknown as unknown:
        raise NotKnown(str(unknown)) from None
    except Denied as denied:
        raise NotAllowed(str(denied)) from None


def _apply_all(routing: pb.RoutingHints, metadata: Mapping[str, str]) -> None:
    for key, (field, read, allowed) in KEYS.items():
        if key in metadata:
            _apply(routing, field, _value(key, metadata[key], read, allowed), key, allowed)


def _value(key: str, text: str, read: Callable[[str], int | str], allowed: str) -> int | str:
    try:
        return read(text)
    except ValueError:
        raise InvalidRequest(
            f"{key}: not a number, got {text[:64]!a}, allowed {allowed}", field=key
        ) from None


def _apply(routing: pb.RoutingHints, field: str, value: int | str, key: str, allowed: str) -> None:
    if routing.HasField(field) and getattr(routing, field) != value:  # type: ignore[arg-type]  # a key of KEYS
        raise InvalidRequest(f"{key}: disagrees with routing.{field}", field=f"routing.{field}")
    try:
        setattr(routing, field, value)
    except ValueError:
        raise InvalidRequest(f"{key}: out of range, got {value}, allowed {allowed}", field=key) from None

"""The reserved metadata keys of a call, folded into the request they belong to, and in whose name it comes.

A key counts for an engine with the capability of the body field that it stands for; both may be set only when
they agree. Other keys are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from enginewire import v1 as pb
from enginewire.access.access import TENANT_KEY, Access, Denied, Unknown
from enginewire.access.caller import Party, caller
from enginewire.access.known_callers import NAME, NAME_WORDS
from enginewire.server.admission.origin import Origin
from enginewire.server.failures import InvalidRequest, NotAllowed, NotKnown
from enginewire.tracing.trace_context import passed_on

# metadata key → (field of RoutingHints, its capability, what is allowed)
KEYS: Final[Mapping[str, tuple[str, str, str]]] = {
    "enginewire-dp-rank": ("dp_rank", "data_parallel", "0..4294967295"),
    "enginewire-priority": ("priority", "priority", "-2147483648..2147483647"),
}
DECIMAL: Final = re.compile(r"-?[0-9]{1,10}")


def apply_metadata(
    request: pb.GenerateRequest, metadata: Mapping[str, str], capabilities: pb.Capabilities
) -> None:
    """Set routing hints from metadata. Raises InvalidRequest that names the key."""
    _apply_all(request.request.routing, metadata, capabilities)


def routing_of(metadata: Mapping[str, str], capabilities: pb.Capabilities) -> pb.RoutingHints:
    """The routing hints of a request that has no field for them. Raises as `apply_metadata`."""
    routing = pb.RoutingHints()
    _apply_all(routing, metadata, capabilities)
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


def _apply_all(routing: pb.RoutingHints, metadata: Mapping[str, str], capabilities: pb.Capabilities) -> None:
    for key, (field, capability, allowed) in KEYS.items():
        if key in metadata and getattr(capabilities, capability):
            _apply(routing, field, _number(key, metadata[key], allowed), key, allowed)


def _number(key: str, text: str, allowed: str) -> int:
    if not DECIMAL.fullmatch(text):
        raise InvalidRequest(f"{key}: not a number, got {text[:64]!a}, allowed {allowed}", field=key)
    return int(text)


def _apply(routing: pb.RoutingHints, field: str, value: int, key: str, allowed: str) -> None:
    if routing.HasField(field) and getattr(routing, field) != value:  # type: ignore[arg-type]  # a key of KEYS
        raise InvalidRequest(f"{key}: disagrees with routing.{field}", field=f"routing.{field}")
    try:
        setattr(routing, field, value)
    except ValueError:
        raise InvalidRequest(f"{key}: out of range, got {value}, allowed {allowed}", field=key) from None

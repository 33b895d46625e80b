"""Whether a target declares what a requirement is gated on. Reads its EngineConfig; calls nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.outcome import NEEDS_LAUNCH

CORE: Final = "core"

ROLES: Final[dict[str, tuple[pb.EngineRole.ValueType, ...]]] = {
    "prefill": (pb.ENGINE_ROLE_PREFILL,),
    "decode": (pb.ENGINE_ROLE_DECODE,),
}

OUTSIDE: Final = {
    "launch": NEEDS_LAUNCH,
    "disaggregation": "needs --prefill and --decode",
    "keepalive": "needs a target over TCP",
    "keys": "needs --read-key, --infer-key or --admin-key",
    "tls": "needs a target on TLS, and --tls or --tls-ca",
    "client_certificates": "needs a target on TLS that asks for certificates, and --tls-cert",
    "tracing": "needs --otlp-listen, and a target that sends its spans there",
    "reflection": "needs --declare reflection",
    "backend": "is for backends: see the subcommand client",
}
"""Gates that no field of the engine speaks of, and what the user has to do about them."""


def why_closed(gate: str, config: pb.EngineConfig, declared: Collection[str]) -> str:
    """Why requirements of this gate do not apply; empty when they do.

    `declared`: the gates of OUTSIDE that hold for this run.
    """
    if gate in ("", CORE) or gate in declared:
        return ""
    if gate in OUTSIDE:
        return OUTSIDE[gate]
    if gate in ROLES:
        return "" if config.role in ROLES[gate] else f"the role is {pb.EngineRole.Name(config.role)}"
    if gate in pb.Capabilities.DESCRIPTOR.fields_by_name:
        return "" if getattr(config.capabilities, gate) else f"Capabilities.{gate} is not advertised"
    if gate in pb.EngineConfig.DESCRIPTOR.fields_by_name:
        return "" if config.HasField(gate) else f"EngineConfig.{gate} is absent"  # type: ignore[arg-type]  # checked
    raise ValueError(f"no gate is called {gate}")

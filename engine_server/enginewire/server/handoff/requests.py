"""Which requests hand their KV over or continue from there, and what both halves of one have in common.

Knows nothing about files or engines.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from enginewire import v1 as pb
from enginewire.server.failures import Unsupported
from enginewire.server.handoff.options import Role

RENDEZVOUS: Final = "bootstrap_info"
ENGINE_ROLES: Final[Mapping[Role, pb.EngineRole.ValueType]] = {
    "aggregated": pb.ENGINE_ROLE_AGGREGATED,
    "prefill": pb.ENGINE_ROLE_PREFILL,
    "decode": pb.ENGINE_ROLE_DECODE,
}


def hands_over(request: pb.PreprocessedRequest, role: Role) -> bool:
    """True for a request that a prefill engine ends with a hand-off. Probes leave nothing behind."""
    _check_rendezvous(request, role)
    return role == "prefill" and not request.is_probe


def is_handed_over(request: pb.PreprocessedRequest, role: Role) -> bool:
    """True for a request that a decode engine continues from its hand-off."""
    _check_rendezvous(request, role)
    return role == "decode" and not request.is_probe


def prompt_of(message: pb.PreprocessedRequest) -> pb.PreprocessedRequest:
    """The part of a request that a prefill engine acts on."""
    return pb.PreprocessedRequest(
        token_ids=message.token_ids,
        routing=message.routing,
        cache_salt=message.cache_salt,
        bypass_prefix_cache=message.bypass_prefix_cache,
        stop_conditions=pb.StopConditions(max_tokens=1, ignore_eos=True),
        sampling_options=pb.SamplingOptions(temperature=0),
    )


def prompt_digest(request: pb.PreprocessedRequest, adapter: str) -> str:
    """Of prompt, adapter and who may see the KV, 64 hex digits: equal for both halves of a request.

    `adapter` is the digest of the adapter's files, "" for none: two engines may have loaded different ones
    under one name.
    """
    names = [name.encode() for name in (request.cache_salt, request.routing.lora_name, adapter)]
    digest = sha256(b"".join(struct.pack("<Q", len(name)) + name for name in names))
    digest.update(struct.pack(f"<{len(request.token_ids)}I", *request.token_ids))
    return digest.hexdigest()


def _check_rendezvous(request: pb.PreprocessedRequest, role: Role) -> None:
    """Raise Unsupported for a transfer over the network, which engines that use a folder do not have."""
    if role != "aggregated" and request.HasField("bootstrap_info"):
        raise Unsupported(f"{RENDEZVOUS}: this engine hands KV over in a folder", field=RENDEZVOUS)

"""Whether two engines serve the same, as far as they say. Knows nothing about requests."""

from __future__ import annotations

from enginewire import v1 as pb


def begins_like(origin: pb.GetEngineInfoResponse, info: pb.GetEngineInfoResponse) -> bool:
    """A request of which nobody has seen anything may begin at the second engine instead of the first."""
    return model_of(origin) == model_of(info)


def model_of(info: pb.GetEngineInfoResponse) -> tuple[object, ...]:
    """What decides which tokens there are, and what an engine does with them."""
    config = info.config
    return config.model, config.vocab_size, tuple(config.eos_token_ids), config.role

"""A trial before a model serves: through the paged cache it must say what it says without.

An architecture of transformers may keep state that is neither key nor value, count positions its
own way or let tokens of a batch meet. No list of names tells; two short sequences, cut into pieces
and mixed, do. Knows nothing about folders or requests.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from enginewire.torch_engine.layers.attention import KvTensors, Span, plan_attention
from enginewire.torch_engine.layers.flat_inputs import FlatInputs
from enginewire.torch_engine.models.huggingface.attention import PAGED
from enginewire.torch_engine.models.huggingface.model import GenericModel, look_up

TOLERANCE = {torch.float32: 0.002}
"""Largest relative distance of logits: rounding stays far below, a wrong mechanism far above."""
COARSE_TOLERANCE = 0.25
"""In half precision rounding alone reaches some hundredths, more where experts are chosen by it."""
BLOCK_SIZE = 4
LONGEST = 24


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens `start` to `end` of sequence number `sequence`."""

    sequence: int
    start: int
    end: int


Steps: TypeAlias = list[list[Piece]]


@torch.inference_mode()
def passes_trial(network: PreTrainedModel, model: GenericModel) -> bool:
    """True if the logits after each piece equal those of the whole sequence computed alone.

    Logits that are no numbers pass: the warm-up has its own words for them.
    """
    long = min(LONGEST, model.config.max_position)
    sequences = _sequences(long, model.config.vocab_size, model.embedding.device)
    network.set_attn_implementation("eager")
    exact = [network(input_ids=tokens[None], use_cache=False).logits[0].float() for tokens in sequences]
    network.set_attn_implementation(PAGED)
    if not all(logits.isfinite().all() for logits in exact):
        return True
    tolerance = TOLERANCE.get(model.embedding.dtype, COARSE_TOLERANCE)
    cache = model.new_cache(2 * LONGEST // BLOCK_SIZE, BLOCK_SIZE)
    for step in _steps(long):
        paged = _run(model, cache, sequences, step)
        wanted = torch.stack([exact[piece.sequence][piece.end - 1] for piece in step])
        if not distances(paged, wanted).max() <= tolerance:
            return False
    return True


@torch.inference_mode()
def takes_embeddings(network: PreTrainedModel, model: GenericModel) -> bool:
    """True if embeddings in place of token ids give the same logits."""
    if "inputs_embeds" not in inspect.signature(network.forward).parameters:
        return False
    tokens = _sequences(min(LONGEST, model.config.max_position), model.config.vocab_size, network.device)[0]
    network.set_attn_implementation("eager")
    try:
        wanted = network(input_ids=tokens[None], use_cache=False).logits[0].float()
        found = network(inputs_embeds=look_up(network, tokens[None]), use_cache=False).logits[0].float()
    except (TypeError, ValueError, RuntimeError, AttributeError):  # it needs the ids as well
        return False
    finally:
        network.set_attn_implementation(PAGED)
    return bool(distances(found, wanted).max() <= TOLERANCE.get(model.embedding.dtype, COARSE_TOLERANCE))


def _sequences(long: int, vocab_size: int, device: torch.device) -> list[Tensor]:
    numbers = torch.arange(2 * long, device=device) * 7919 + 11
    return list((numbers % vocab_size).view(2, long))


def _steps(long: int) -> Steps:
    """Chunks alone, two sequences in one batch, decodes of different lengths together."""
    third, most = max(long // 3, 1), max(long - 1, 1)
    steps = [
        [Piece(0, 0, third)],
        [Piece(0, third, most), Piece(1, 0, third)],
        [Piece(1, third, third + 1), Piece(0, most, long)],
        [Piece(1, third + 1, long)],
    ]
    real = [[piece for piece in step if piece.start < piece.end <= long] for step in steps]
    return [step for step in real if step]


def _run(model: GenericModel, cache: KvTensors, sequences: list[Tensor], step: list[Piece]) -> Tensor:
    like, blocks = model.embedding, LONGEST // BLOCK_SIZE
    tables = [list(range(blocks)), list(range(blocks, 2 * blocks))]
    spans = [Span(piece.end - piece.start, piece.end, tables[piece.sequence]) for piece in step]
    if all(piece.start == 0 for piece in step):
        cache.clear(range(2 * blocks))
    plan = plan_attention(spans, BLOCK_SIZE, frozenset(model.config.windows), like)
    tokens = torch.cat([sequences[piece.sequence][piece.start : piece.end] for piece in step])
    positions = torch.cat([torch.arange(piece.start, piece.end, device=like.device) for piece in step])
    ends = torch.tensor([span.num_new for span in spans], device=like.device).cumsum(0)
    return model.forward(FlatInputs(tokens, positions, ends - 1, plan), cache)


def distances(found: Tensor, wanted: Tensor) -> Tensor:
    """Of each row, relative to the spread of its logits: what all of them share says nothing."""
    spread: Tensor = torch.linalg.vector_norm(wanted - wanted.mean(-1, keepdim=True), dim=-1)
    apart: Tensor = torch.linalg.vector_norm(found - wanted, dim=-1)
    return apart / spread

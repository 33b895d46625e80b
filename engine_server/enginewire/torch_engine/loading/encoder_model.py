"""Loading an encoder through transformers: which ones, their weights, and the trial they stand.

Only safetensors of the folder are read; no code, no pickle and no network is ever used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import torch
from transformers import MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

from enginewire.torch_engine.folder.config import ENCODERS
from enginewire.torch_engine.folder.folder import ModelFolder
from enginewire.torch_engine.models.huggingface.loading import (
    architecture_of,
    load_network,
    quiet,
    read_config,
    refusal,
)
from enginewire.torch_engine.runner.encoder import Encoder, EncoderConfig

OFFSET: Final = ("camembert", "mpnet", "roberta", "xlm-roberta")
"""They count positions from the padding id on, and so have fewer of them than their table."""
POOLER: Final = "pooler."
"""Weights that only turn the first token's state into something else; often absent, never used."""
TOLERANCE: Final = {torch.float32: 1e-3}
COARSE_TOLERANCE: Final = 0.1
LONGEST_TRIAL: Final = 24


def is_encoder(folder: ModelFolder) -> bool:
    """True for a folder of one of the ENCODERS whose tokens look both ways."""
    values = folder.config
    if values.get("model_type") not in ENCODERS or values.get("is_decoder") is True:
        return False
    with quiet():
        config = read_config(folder)
    known = [MODEL_MAPPING.get(type(config), None), MODEL_FOR_MASKED_LM_MAPPING.get(type(config), None)]
    return architecture_of(folder) in [getattr(each, "__name__", None) for each in known]


def load_encoder(
    folder: ModelFolder, dtype: torch.dtype, device: torch.device, progress: Callable[[float], None]
) -> Encoder:
    """Load and try it; `progress` gets the fraction done. Raises ModelLoadError."""
    folder.weight_files()
    with quiet():
        config = read_config(folder)
        network_class = cast("type[PreTrainedModel]", MODEL_MAPPING[type(config)])
        network = load_network(folder, config, network_class, dtype, optional=POOLER)
    torch.nn.Module.to(network, device)
    progress(0.9)
    padding_id = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
    encoder = Encoder(network, _sizes(folder, config), padding_id)
    if not passes_trial(encoder, dtype):
        raise refusal(folder, "its states change with what is beside an input")
    progress(1.0)
    return encoder


def passes_trial(encoder: Encoder, dtype: torch.dtype) -> bool:
    """True when padding changes nothing. States that are no numbers pass: the warm-up tells of them."""
    long = min(LONGEST_TRIAL, encoder.config.max_position)
    numbers = [(place * 7919 + 11) % encoder.config.vocab_size for place in range(2 * long)]
    inputs = [numbers[:long], numbers[long : 2 * long - long // 6]]
    together = encoder.encode(inputs).float()
    alone = torch.cat([encoder.encode([each]) for each in inputs]).float()
    if not alone.isfinite().all():
        return True
    distance = (together - alone).norm(dim=-1) / alone.norm(dim=-1)
    return bool(distance.max() <= TOLERANCE.get(dtype, COARSE_TOLERANCE))


def _sizes(folder: ModelFolder, config: PreTrainedConfig) -> EncoderConfig:
    longest = getattr(config, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 4:
        raise refusal(folder, "its configuration names no max_position_embeddings")
    if folder.config.get("model_type") in OFFSET:
        longest -= (config.pad_token_id or 0) + 1
    architecture = architecture_of(folder)
    assert architecture is not None, "an encoder is known by its architecture"
    return EncoderConfig(architecture, config.vocab_size, longest, config.hidden_size)

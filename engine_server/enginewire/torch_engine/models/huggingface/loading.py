"""Loading a model folder through transformers: what may be loaded, and what is refused in one line.

Only safetensors of the folder are read; no code, no pickle and no network is ever used. Knows
nothing about engines, caches or requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from enginewire.torch_engine.folder.folder import ModelFolder, ModelLoadError
from enginewire.torch_engine.lora.projections import AdaptedProjections
from enginewire.torch_engine.models.huggingface.attention import UnsupportedAttentionError
from enginewire.torch_engine.models.huggingface.lora import adapt
from enginewire.torch_engine.models.huggingface.model import GenericModel, observe
from enginewire.torch_engine.models.huggingface.positions import context_of_positions
from enginewire.torch_engine.models.huggingface.trial import passes_trial, takes_embeddings

CHANGING_ROPE = ("dynamic", "longrope")
"""Their frequencies depend on the longest sequence of a batch once it leaves the original context."""

ATTENTION_LAYERS = ("attention", "chunked_attention", "full_attention", "sliding_attention")
"""Kinds of layers, as configurations name them, that keep keys and values only."""


def load_generic_model(
    folder: ModelFolder,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
    adapted: AdaptedProjections | None = None,
) -> GenericModel:
    """Load, observe and try a model; `progress` gets the fraction done. Raises ModelLoadError.

    The layers that adapters can change are added to `adapted`, if given.
    """
    folder.weight_files()
    with quiet():
        config = read_config(folder)
        network_class = _network_class(folder, config)
        if type(config) is not network_class.config_class:  # of a family whose other parts see or hear
            config = config.get_text_config()
        network = load_network(folder, config, network_class, dtype)
    # torch's own method: the override of transformers, which looks for quantised weights, is untyped.
    torch.nn.Module.to(network, device)
    progress(0.9)
    try:
        model = observe(network, _max_position(folder, config))
        model.config = replace(model.config, max_position=context_of_positions(network, model))
        if not passes_trial(network, model):
            raise UnsupportedAttentionError("its logits change when it runs in pieces through the KV cache")
        model.takes_embeddings = takes_embeddings(network, model)
        if adapted is not None:
            adapt(network, model, adapted)
    except UnsupportedAttentionError as error:
        raise refusal(folder, str(error)) from error
    except Exception as error:  # code of any architecture: it may raise anything
        raise refusal(folder, f"transformers cannot run it this way: {_one_line(error)}") from error
    progress(1.0)
    return model


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the log lines and progress bars of transformers off the terminal."""
    verbosity, had_bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def read_config(folder: ModelFolder) -> PreTrainedConfig:
    """The configuration as transformers reads it. Raises ModelLoadError."""
    try:
        config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
        return cast(PreTrainedConfig, config)
    except Exception as error:  # code of any architecture: it may raise anything
        name = folder.config.get("model_type")
        cause = _one_line(error)
        raise refusal(folder, f"transformers cannot read it as model_type {name!r:.60}: {cause}") from error


def _network_class(folder: ModelFolder, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that transformers has for it; refuses what can be refused before any weight is read."""
    network = _named_class(architecture_of(folder), config)
    if network is None:
        raise refusal(folder, "no causal language model of transformers")
    if folder.config.get("quantization_config") is not None:
        raise refusal(folder, "quantization_config: only unquantised weights are")
    if config.is_encoder_decoder:
        raise refusal(folder, "not a decoder-only model")
    if network._is_stateful and not _only_attends(config):
        raise refusal(folder, "it keeps state other than keys and values")
    if not network._supports_attention_backend:
        raise refusal(folder, "it does not use the attention interface of transformers")
    return network


def _named_class(name: str | None, config: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """What transformers has under `name` for `config`, of the whole of a family or of its text part."""
    own = cast("type[PreTrainedModel] | None", MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None))
    if own is not None and own.__name__ == name:
        return own
    for model_type, known in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if known == name:
            network = cast("type[PreTrainedModel]", MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[model_type]])
            if network.config_class is type(config):
                return network
    return None


def _only_attends(config: PreTrainedConfig) -> bool:
    """A family of mixed layers may have members whose layers are all attention."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ["unknown"]
    return all(kind in ATTENTION_LAYERS for kind in kinds)


def load_network(
    folder: ModelFolder,
    config: PreTrainedConfig,
    network_class: type[PreTrainedModel],
    dtype: torch.dtype,
    *,
    optional: str | None = None,
) -> PreTrainedModel:
    """The network with the folder's weights, of which those that begin with `optional` may be missing.

    Raises ModelLoadError.
    """
    try:
        loaded: object = network_class.from_pretrained(
            folder.path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # code of any architecture: it may raise anything
        raise ModelLoadError(
            f"{folder.path}: transformers cannot load the model ({_one_line(error)})"
        ) from error
    network, info = cast(tuple[PreTrainedModel, dict[str, set[str]]], loaded)
    for missing in sorted(info["missing_keys"]):
        if optional is not None and missing.startswith(optional):
            continue
        raise ModelLoadError(f"{folder.path}: no weight file holds the tensor {missing}")
    return network


def _max_position(folder: ModelFolder, config: PreTrainedConfig) -> int:
    """Positions in tokens for which the model computes each sequence the same, whatever its batch."""
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        raise refusal(folder, "its configuration names no max_position_embeddings")
    return min([longest, *_original_contexts(getattr(text, "rope_parameters", None) or {})])


def _original_contexts(rope: dict[str, Any]) -> Iterator[int]:
    """Of every changing rope; some models have one rope per kind of layer."""
    for nested in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        if nested.get("rope_type") in CHANGING_ROPE and "original_max_position_embeddings" in nested:
            yield int(nested["original_max_position_embeddings"])


def architecture_of(folder: ModelFolder) -> str | None:
    """The name of the network class in config.json."""
    names = folder.config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def refusal(folder: ModelFolder, reason: str) -> ModelLoadError:
    """An architecture that cannot be served, in one line."""
    where = folder.path / "config.json"
    return ModelLoadError(
        f"{where}: architectures {architecture_of(folder)!r:.60} is not supported ({reason})"
    )

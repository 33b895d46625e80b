"""Tiny configurations of the architectures of transformers: those that serve and those that cannot.

A new architecture is one entry here; `docs/models.md` is written from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature

import transformers

from tests.torch_engine.tiny import VOCAB

CONTEXT = 96
WINDOW = 9
SHAPE: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
EXPERTS: dict[str, object] = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT: dict[str, object] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
GROUPS: dict[str, object] = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
DEEPSEEK = {**EXPERTS, **LATENT, **GROUPS, "n_routed_experts": 4, "n_shared_experts": 1}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SLIDES = {"sliding_window": WINDOW}
MIXED = {**SLIDES, "layer_types": ["sliding_attention", "full_attention"]}
SHARED_KV = {
    **SLIDES,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCAB,
    "hidden_size_per_layer_input": 8,
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SEES: dict[str, object] = {
    "text_config": {**SHAPE, **MIXED},
    "vision_config": VISION,
    "mm_tokens_per_image": 4,
    "image_token_index": VOCAB - 1,
}
FOUR = {"num_experts": 4}
FOUR_LOCAL = {"num_local_experts": 4}
FOUR_ROUTED = {"n_routed_experts": 4, "n_shared_experts": 1}
LONGROPE: dict[str, object] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 48,
}
PERSIMMON: dict[str, object] = {"text_config": {**SHAPE, "model_type": "persimmon"}, "patch_size": 14}
PHI_HEARS = {"hidden_size": 16, "intermediate_size": 24, "num_blocks": 1, "num_attention_heads": 2}
HEARS = {
    "d_model": 16,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "num_mel_bins": 8,
}
GEMMA4: dict[str, object] = {
    "text_config": {**SHAPE, **SHARED_KV},
    "vision_config": {**VISION, "head_dim": 8, "global_head_dim": 8, "position_embedding_size": 16},
    "image_token_id": VOCAB - 1,
    "video_token_id": VOCAB - 2,
    "audio_token_id": VOCAB - 3,
}
GEMMA4_UNIFIED: dict[str, object] = {
    **GEMMA4,
    "vision_config": {
        "patch_size": 4,
        "pooling_kernel_size": 2,
        "mm_embed_dim": 32,
        "mm_posemb_size": 16,
        "output_proj_dims": 32,
    },
}
DBRX: dict[str, object] = {
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": CONTEXT,
    "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8},
    "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
}
GOT: dict[str, object] = {
    "text_config": {**SHAPE, "model_type": "qwen2"},
    "vision_config": {
        **VISION,
        "image_size": 32,
        "patch_size": 16,
        "mlp_dim": 24,
        "output_channels": 8,
        "global_attn_indexes": [0],
    },
}
ROC = {
    "pronunciation_embed_dim": 8,
    "pronunciation_vocab_size": VOCAB,
    "shape_embed_dim": 8,
    "shape_vocab_size": VOCAB,
}
LLAMA4: dict[str, object] = {
    **EXPERTS,
    **FOUR_LOCAL,
    "intermediate_size_mlp": 48,
    "attention_chunk_size": 64,
}
HYBRID: dict[str, object] = {
    "layer_types": ["attention", "attention"],
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_expand": 1,
    "num_local_experts": 0,
    "shared_intermediate_size": 24,
}

Fields = Mapping[str, object]
SERVED: dict[str, Fields] = {
    "afmoe": {**EXPERTS, **FOUR, **MIXED, "num_dense_layers": 1},
    "apertus": {},
    "arcee": {},
    "aria_text": {**EXPERTS, "moe_num_experts": 4},
    "axk1": DEEPSEEK,
    "beam": {**EXPERTS, **FOUR, **SLIDES},
    "bert": {"is_decoder": True},
    "bert-generation": {"is_decoder": True},
    "bitnet": {},
    "cohere": {},
    "cohere2": MIXED,
    "cohere2_moe": {**EXPERTS, **FOUR, **MIXED},
    "cohere_compass_text": {**MIXED, "rope_parameters": dict.fromkeys(MIXED["layer_types"], ROPE)},
    "ctrl": {"n_embd": 32, "dff": 48, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "cwm": MIXED,
    "dbrx": DBRX,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "diffllama": {},
    "dots1": {**EXPERTS, **GROUPS, **FOUR_ROUTED, **MIXED},
    "electra": {"is_decoder": True, "embedding_size": 32},
    "emu3": {"text_config": SHAPE},
    "ernie": {"is_decoder": True},
    "ernie4_5": {},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24},
    "exaone4": MIXED,
    "exaone_moe": {**EXPERTS, **FOUR, **MIXED, "first_k_dense_replace": 1},
    "flex_olmo": {**EXPERTS, **FOUR},
    "flint": {**EXPERTS, **MIXED},
    "fuyu": PERSIMMON,
    "gemma": {},
    "gemma2": {**MIXED, "attn_logit_softcapping": 0.5},
    "gemma3": SEES,
    "gemma3_text": {**MIXED, "final_logit_softcapping": 3.0},
    "gemma3n_text": {**SHARED_KV, "laurel_rank": 8},
    "gemma4": GEMMA4,
    "gemma4_text": SHARED_KV,
    "gemma4_unified": GEMMA4_UNIFIED,
    "gemma4_unified_text": SHARED_KV,
    "glm": {},
    "glm4": {},
    "glm4_moe": {**EXPERTS, **GROUPS, **FOUR_ROUTED},
    "glm4_moe_lite": DEEPSEEK,
    "got_ocr2": GOT,
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gpt_oss": {**EXPERTS, **FOUR_LOCAL, **MIXED},
    "granite": {"attention_multiplier": 0.2, "logits_scaling": 2.0, "residual_multiplier": 0.7},
    "granite_swa": MIXED,
    "granitemoe": {**EXPERTS, **FOUR_LOCAL},
    "granitemoe_swa": {**EXPERTS, **FOUR_LOCAL, **MIXED},
    "granitemoehybrid": HYBRID,
    "granitemoeshared": {**EXPERTS, **FOUR_LOCAL, "shared_intermediate_size": 24},
    "helium": {},
    "hrm_text": {},
    "hunyuan_v1_dense": {},
    "hunyuan_v1_moe": {**EXPERTS, **FOUR, "moe_topk": 2},
    "hy_v3": {**EXPERTS, **FOUR},
    "hyperclovax": {},
    "internlm3": {},
    "iquestcoder": {},
    "jais2": {},
    "jetmoe": {"num_key_value_heads": 2, "kv_channels": 8, **FOUR_LOCAL},
    "kolibri1": {**EXPERTS, **FOUR, **MIXED, "shared_expert_intermediate_size": 24},
    "laguna": {**EXPERTS, **FOUR},
    "llama4": {"text_config": {**SHAPE, **LLAMA4}},
    "llama4_text": LLAMA4,
    "longcat_flash": {**DEEPSEEK, "num_layers": 2, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 24},
    "mellum": {**EXPERTS, **FOUR},
    "mimo_v2_flash": {**EXPERTS, **FOUR_ROUTED, **MIXED},
    "minicpm3": LATENT,
    "minimax_m2": {**EXPERTS, **FOUR_LOCAL},
    "minimax_m3_vl_text": {**EXPERTS, **FOUR_LOCAL},
    "ministral": MIXED,
    "ministral3": SLIDES,
    "mixtral": {**EXPERTS, **FOUR_LOCAL, **SLIDES},
    "modernbert-decoder": {"local_attention": 8},
    "moss_transcribe_diarize": {"text_config": {**SHAPE, "model_type": "qwen3"}, "audio_config": HEARS},
    "moshi": {"ffn_dim": 48},
    "nanochat": {},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": MIXED,
    "olmoe": {**EXPERTS, **FOUR},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "persimmon": {},
    "phi": {},
    "phi3": {**SLIDES, "rope_parameters": LONGROPE, "original_max_position_embeddings": 48},
    "phi4_multimodal": {"vision_config": {**VISION, "crop_size": 28}, "audio_config": PHI_HEARS},
    "phimoe": {**EXPERTS, **FOUR_LOCAL, **SLIDES},
    "qwen2_moe": {**EXPERTS, **FOUR, "shared_expert_intermediate_size": 24},
    "qwen3_moe": {**EXPERTS, **FOUR},
    "roc_bert": {"is_decoder": True, **ROC},
    "seed_oss": {},
    "smollm3": {},
    "solar_open": {**EXPERTS, **GROUPS, **FOUR_ROUTED},
    "starcoder2": SLIDES,
    "vaultgemma": MIXED,
    "youtu": LATENT,
}
"""model_type → what its configuration needs beside SHAPE."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A model that must not start, and the reason that its user reads.

    Most are refused by name. `has_weights` says that it takes a look at the network; then `changes`
    are what its configuration needs beside SHAPE. `architecture` is for classes of another task.
    """

    reason: str
    changes: Fields = field(default_factory=dict)
    has_weights: bool = False
    architecture: str = ""


NO_INTERFACE = Refused("it does not use the attention interface of transformers")
STATE = Refused("it keeps state other than keys and values")
CONV = {"layer_types": ["conv", "full_attention"]}
SPARSE = {**DEEPSEEK, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
MLLAMA: dict[str, object] = {"text_config": {**SHAPE, "cross_attention_layers": [1]}}
DOTS3_NOTE = {
    **SPARSE,
    **MIXED,
    **{f"swa_{name}": value for name, value in {**LATENT, "num_attention_heads": 4, "head_dim": 16}.items()},
}
DOTS3_NOTE_ALL: dict[str, object] = {
    "text_config": {**SHAPE, **DOTS3_NOTE},
    "vision_config": {**VISION, "mlp_layer_types": ["dense"], "adapter_in_dim": 16, "adapter_out_dim": 32},
    "audio_config": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "adapter_input_size": 16,
        "adapter_out_dim": 32,
    },
}
COUNTS = "it counts positions in a way of its own"
INDEXED = Refused("its attention needs the option indices", SPARSE, has_weights=True)
REFUSED: dict[str, Refused] = {
    "axk2": INDEXED,
    "biogpt": NO_INTERFACE,
    "bloom": NO_INTERFACE,
    "camembert": Refused(COUNTS, {"is_decoder": True}, has_weights=True),
    "codegen": NO_INTERFACE,
    "deepseek_v32": INDEXED,
    "dots3_note": Refused(INDEXED.reason, DOTS3_NOTE_ALL, has_weights=True),
    "dots3_note_text": Refused(INDEXED.reason, DOTS3_NOTE, has_weights=True),
    "doge": Refused("it masks attention in a way of its own", {}, has_weights=True),
    "falcon": NO_INTERFACE,
    "falcon_mamba": STATE,
    "gptj": NO_INTERFACE,
    "glm_moe_dsa": INDEXED,
    "hy_v4": INDEXED,
    "lfm2": Refused("1 of its 2 layers use the attention interface", CONV, has_weights=True),
    "lfm2_moe": Refused("1 of its 2 layers use the attention", {**EXPERTS, **FOUR, **CONV}, has_weights=True),
    "mamba": STATE,
    "minimax": Refused("1 of its 2 layers use the attention", {**EXPERTS, **FOUR_LOCAL}, has_weights=True),
    "mllama": Refused("1 of its 2 layers use the attention", MLLAMA, has_weights=True),
    "mpt": NO_INTERFACE,
    "qwen3_next": STATE,
    "roberta": Refused(COUNTS, {"is_decoder": True}, has_weights=True),
    "rwkv": STATE,
    "stablelm": NO_INTERFACE,
    "t5": Refused("no causal language model of transformers", architecture="T5ForConditionalGeneration"),
    "whisper": Refused("not a decoder-only model"),
    "xglm": NO_INTERFACE,
    "xmod": Refused(
        "transformers cannot run it this way: ValueError: Input language unknown",
        {"is_decoder": True},
        has_weights=True,
    ),
}
"""model_type → why it is refused: at least one of every kind, not a complete list."""


def tiny_config(model_type: str, changes: Fields) -> transformers.PreTrainedConfig:
    """SHAPE as far as the architecture knows its fields, and all of `changes`."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    known = {*signature(config_class).parameters, *config_class.attribute_map}
    return config_class(**{name: value for name, value in SHAPE.items() if name in known} | dict(changes))

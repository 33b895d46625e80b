#!/usr/bin/env python3
"""Writes `builtin:demo` as a GGUF file in float32, with its tokenizer: .ci/make_gguf.py FILE"""

from __future__ import annotations

import json
import sys

import gguf
import numpy as np
from safetensors.torch import load_file

from enginewire.server.demo_model import PATH

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main(file: str) -> None:
    """Write the file."""
    config = json.loads((PATH / "config.json").read_text())
    writer = gguf.GGUFWriter(file, "llama")
    write_shape(writer, config)
    write_tokenizer(writer, config, json.loads((PATH / "tokenizer.json").read_text()))
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in load_file(PATH / "model.safetensors").items():
        target, values = gguf_name(name), tensor.float().numpy()
        part = target.split(".")[-1]
        if part in heads:
            values = rotated(values, heads[part])
        writer.add_tensor(f"{target}.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: gguf.GGUFWriter, config: dict) -> None:
    """The sizes of the model."""
    writer.add_name("demo")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def write_tokenizer(writer: gguf.GGUFWriter, config: dict, tokenizer: dict) -> None:
    """Tokens and merges; special tokens are those that are added."""
    special = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    vocab = {token_id: token for token, token_id in tokenizer["model"]["vocab"].items()} | special
    ids = range(config["vocab_size"])
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([vocab[token_id] for token_id in ids])
    writer.add_token_types([kinds[token_id in special] for token_id in ids])
    writer.add_token_merges(
        [each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]]
    )
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def gguf_name(name: str) -> str:
    """Of a tensor, without `.weight`."""
    name = name.removesuffix(".weight")
    if name in NAMES:
        return NAMES[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}"


def rotated(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of llama.cpp's rotary embedding: pairs lie beside each other."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


if __name__ == "__main__":
    main(sys.argv[1])

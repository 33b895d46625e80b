#!/usr/bin/env python3
"""Writes a Llama or Qwen2 of Hugging Face as a GGUF file: .ci/make_gguf.py FOLDER FILE [f32|bf16|q8_0]

Of a folder without a tokenizer the file has made-up tokens: token ids go in and come out all the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal

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
ROTATED = {"llama": ("attn_q", "attn_k")}
"""By architecture, the parts whose rows llama.cpp's rotary embedding wants in another order."""


def main(folder: str, file: str, kind: str = "f32") -> None:
    """Write the file."""
    source = Path(folder)
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(file, config["model_type"])
    write_shape(writer, config)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'f32' else 'MOSTLY'}_{kind.upper()}"])
    file_of_tokens = source / "tokenizer.json"
    known = file_of_tokens.exists()
    write_tokenizer(writer, config, json.loads(file_of_tokens.read_text()) if known else made_up(config))
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in SafetensorsLocal(source / "model.safetensors").tensors.items():
        target, values = gguf_name(name), floats(tensor)
        part = target.split(".")[-2]
        if part in ROTATED.get(config["model_type"], ()):
            values = rotated(values, heads[part])
        # What is no matrix stays in float32, as in llama.cpp's own files.
        stored = gguf.GGMLQuantizationType[kind.upper() if values.ndim > 1 else "F32"]
        writer.add_tensor(target, gguf.quantize(np.ascontiguousarray(values), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: gguf.GGUFWriter, config: dict) -> None:
    """The sizes of the model."""
    heads = config["num_attention_heads"]
    writer.add_name("demo")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // heads)
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


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


def made_up(config: dict) -> dict:
    """A tokenizer that has a name for every id."""
    special = [{"id": config[key], "content": f"<{key}>"} for key in ("bos_token_id", "eos_token_id")]
    vocab = {f"t{token_id}": token_id for token_id in range(config["vocab_size"])}
    return {"added_tokens": special, "model": {"vocab": vocab, "merges": ["t 0"]}}


def gguf_name(name: str) -> str:
    """Of a tensor."""
    name, _, suffix = name.rpartition(".")
    if name in NAMES:
        return f"{NAMES[name]}.{suffix}"
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.{suffix}"


def floats(tensor: LocalTensor) -> np.ndarray:
    """A tensor in float32. NumPy has no bfloat16: these are the upper halves of float32."""
    raw = np.array(tensor.mmap_bytes())
    if tensor.dtype == "BF16":
        values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = raw.view({"F16": np.float16, "F32": np.float32}[tensor.dtype]).astype(np.float32)
    return values.reshape(tensor.shape)


def rotated(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order of llama.cpp's rotary embedding: pairs lie beside each other."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


if __name__ == "__main__":
    main(*sys.argv[1:])

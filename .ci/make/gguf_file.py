#!/usr/bin/env python3
"""Writes a Llama, Qwen2 or Qwen3 of Hugging Face as a GGUF file.

    .ci/make/gguf_file.py FOLDER FILE [KINDS [HEAD]]

A kind is f32, bf16, q8_0 or another one of llama.cpp; matrices take several, with commas between, by turns.
In those that only llama.cpp itself can make they are random. HEAD is the kind of the head and of the
embedding, which may be the same matrix; they take their turns too where it is not given. Of a folder without
a tokenizer the file has made-up tokens: token ids go in and come out all the same.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.utility import LocalTensor, SafetensorsLocal

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
HEADS = ("token_embd.weight", "output.weight")
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ROTATED = {"llama": ("attn_q", "attn_k")}
"""By architecture, the parts whose rows llama.cpp's rotary embedding wants in another order."""


def main(folder: str, file: str, kind: str = "f32", head: str = "") -> None:
    """Write the file."""
    source = Path(folder)
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(file, config["model_type"])
    write_shape(writer, config)
    kinds = [gguf.GGMLQuantizationType[each.upper()] for each in kind.split(",")]
    of_head = gguf.GGMLQuantizationType[head.upper()] if head else None
    file_of_tokens = source / "tokenizer.json"
    known = file_of_tokens.exists()
    write_tokenizer(writer, config, json.loads(file_of_tokens.read_text()) if known else made_up(config))
    template = source / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    scaling = config.get("rope_parameters") or {}
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", slowed(scaling, config["head_dim"]))
    number = 0
    for name, tensor in sorted(SafetensorsLocal(source / "model.safetensors").tensors.items()):
        target, values = gguf_name(name), floats(tensor)
        part = target.split(".")[-2]
        if part in ROTATED.get(config["model_type"], ()):
            values = rotated(values, heads[part])
        # What is no matrix stays in float32, as in llama.cpp's own files.
        stored = gguf.GGMLQuantizationType.F32
        if of_head is not None and target in HEADS:
            stored = of_head
        elif values.ndim > 1:
            stored, number = kinds[number % len(kinds)], number + 1
        writer.add_tensor(target, quantized(values, stored, number), raw_dtype=stored)
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
    size = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_rope_dimension_count(size)
    writer.add_key_length(size)
    writer.add_value_length(size)
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
    names = ["", " ", "t", "0", "t0", *(f"x{number}" for number in range(config["vocab_size"]))]
    vocab = {name: token_id for token_id, name in enumerate(names[: config["vocab_size"]])}
    return {"added_tokens": special, "model": {"vocab": vocab, "merges": ["t 0"]}}


def quantized(values: np.ndarray, kind: gguf.GGMLQuantizationType, seed: int) -> np.ndarray:
    """A matrix in a kind; a random one in a kind that the package can only read."""
    try:
        return gguf.quantize(np.ascontiguousarray(values), kind)
    except NotImplementedError:
        shape = gguf.quant_shape_to_byte_shape(values.shape, kind)
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(seed).integers(0, 256, (np.prod(shape) // size, size), np.uint8)
    # Where the scales of a block lie: any other bytes are numbers of an ordinary size.
    where = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q3_K": (108,), "Q2_K": (80, 82)}[kind.name]
    for place in where:
        scale = np.float16(values.std() / 200)
        blocks[:, place : place + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(shape)


def slowed(scaling: dict, size: int) -> np.ndarray:
    """By how much Llama 3 slows each rotation."""
    waves = 2 * np.pi * scaling["rope_theta"] ** (np.arange(0, size, 2) / size)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = np.clip((scaling["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / scaling["factor"] + share)).astype(np.float32)


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

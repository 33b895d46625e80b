"""What vLLM is told on its command line."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from enginewire.server.config.options import ServerOptions
from enginewire.vllm_engine.options import VllmEngineOptions

MODEL = Path("/models/small")


def pairs(words: list[str]) -> dict[str, str]:
    """Each flag with the word behind it, the last one of a flag that comes twice."""
    return {flag: word for flag, word in pairwise(words) if flag.startswith("--")}


def test_sizes_that_nobody_has_chosen_are_left_to_vllm() -> None:
    said = pairs(VllmEngineOptions("m").command_line(MODEL))
    assert said["--model"] == "/models/small"
    assert said["--max-num-seqs"] == str(ServerOptions().max_num_seqs)
    assert not {"--max-model-len", "--block-size", "--seed", "--num-gpu-blocks-override"} & said.keys()


def test_every_size_has_the_name_that_vllm_has_for_it() -> None:
    options = VllmEngineOptions(
        "m",
        dtype="float32",
        kv_cache_dtype="bfloat16",
        max_model_len=100,
        block_size=16,
        num_kv_blocks=50,
        kv_cache_memory_bytes=2**20,
        max_num_seqs=3,
        max_num_batched_tokens=64,
        seed=0,
    )
    said = pairs(options.command_line(MODEL))
    assert (said["--dtype"], said["--max-model-len"], said["--block-size"]) == ("float32", "100", "16")
    assert said["--kv-cache-dtype"] == "bfloat16"
    assert (said["--num-gpu-blocks-override"], said["--kv-cache-memory-bytes"]) == ("50", str(2**20))
    assert (said["--max-num-seqs"], said["--max-num-batched-tokens"], said["--seed"]) == ("3", "64", "0")


def test_the_prefix_cache_can_be_switched_off() -> None:
    assert "--enable-prefix-caching" in VllmEngineOptions("m").command_line(MODEL)
    off = VllmEngineOptions("m", enable_prefix_caching=False).command_line(MODEL)
    assert "--no-enable-prefix-caching" in off


def test_what_the_operator_says_to_vllm_comes_last_so_that_it_holds() -> None:
    options = VllmEngineOptions("m", arguments=("--scheduling-policy", "fcfs", "--enforce-eager"))
    words = options.command_line(MODEL)
    assert pairs(words)["--scheduling-policy"] == "fcfs"
    assert words[-1] == "--enforce-eager"


def test_adapters_are_asked_for_where_there_may_be_any_and_one_place_more() -> None:
    assert "--enable-lora" not in VllmEngineOptions("m").command_line(MODEL)
    words = VllmEngineOptions("m", max_loras=3, max_lora_rank=16).command_line(MODEL)
    said = pairs(words)
    assert "--enable-lora" in words
    assert (said["--max-loras"], said["--max-cpu-loras"], said["--max-lora-rank"]) == ("4", "4", "16")

"""Models and requests to measure an engine with: random weights, random prompts, always the same.

Knows nothing about engines or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

VOCAB = 32_000
SHAPES = {
    "15m": (288, 768, 6, 6),
    "110m": (768, 2048, 12, 12),
    "500m": (896, 4864, 24, 14),
    "7b": (4096, 11008, 32, 32),
}
"""Models by their size: hidden size, MLP size, layers, heads; as Qwen2.5 0.5B and Llama 2 7B the last two."""
QWEN_VOCAB, QWEN_KV_HEADS = 151_936, 2


@dataclass(frozen=True, slots=True)
class Job:
    """One request: when it arrives (seconds after the start), its prompt, how many tokens to generate."""

    arrival: float
    prompt: list[int]
    num_output: int


def make_model(folder: Path, shape: str, dtype: str, *, counts: bool = False) -> None:
    """Write a model folder with random weights. A model that `counts` answers token t with t + 1.

    So it is known what an answer has in common with its prompt; what it takes to compute it stays the same.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    hidden, inner, layers, heads = SHAPES[shape]
    qwen = shape == "500m"
    config = AutoConfig.for_model(
        "qwen2" if qwen else "llama",
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=QWEN_KV_HEADS if qwen else heads,
        vocab_size=QWEN_VOCAB if qwen else VOCAB,
        max_position_embeddings=2048,
        tie_word_embeddings=not counts,
        bos_token_id=1,
        eos_token_id=2,
    )
    # A GPU draws billions of weights in seconds.
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    if counts:
        with torch.no_grad():
            table = model.get_input_embeddings().weight
            table.normal_()  # then a token says more about itself than the layers do
            model.get_output_embeddings().weight.copy_(table.roll(1, dims=0))
    model.save_pretrained(folder)


def static_batch(size: int, num_prompt: int, num_output: int) -> list[Job]:
    """`size` equal requests at once."""
    random = Random(1)
    return [Job(0.0, _prompt(random, num_prompt), num_output) for _ in range(size)]


def mixed(count: int, rate: float | None) -> list[Job]:
    """Prompts of 16 to 512 and outputs of 16 to 256 tokens; at once, or `rate` per second (Poisson)."""
    random = Random(0)
    jobs, now = [], 0.0
    for _ in range(count):
        num_prompt, num_output = random.randint(16, 512), random.randint(16, 256)
        now += random.expovariate(rate) if rate else 0.0
        jobs.append(Job(now, _prompt(random, num_prompt), num_output))
    return jobs


def repeating(size: int, num_prompt: int, num_output: int, *, edited: int = 12) -> list[Job]:
    """For a model that counts: the answer is the prompt, but for every token number `edited` of it."""
    random = Random(2)
    jobs = []
    for _ in range(size):
        begin = random.randrange(3, VOCAB - num_prompt - num_output)
        text = [begin + place for place in range(1, num_prompt)]
        text[edited - 1 :: edited] = _prompt(random, len(text) // edited)
        jobs.append(Job(0.0, [*text, begin], num_output))
    return jobs


def misleading(size: int, num_prompt: int, num_output: int) -> list[Job]:
    """For a model that counts: any two tokens of the answer are in the prompt, and something else behind."""
    random = Random(3)
    jobs = []
    for _ in range(size):
        begin = random.randrange(3, VOCAB - num_prompt - num_output)
        pairs = range(begin, begin + (num_prompt - 1) // 3)
        text = [token for first in pairs for token in (first, first + 1, random.randrange(3, VOCAB))]
        jobs.append(Job(0.0, [*text, begin], num_output))
    return jobs


def _prompt(random: Random, length: int) -> list[int]:
    return [random.randrange(3, VOCAB) for _ in range(length)]

"""`builtin:demo`, the model that ships with the project: where it lies and what it was taught.

Holds paths and the questions. Knows nothing about torch, tokenizers or how the model was trained.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PATH = Path(__file__).parent / "weights"
"""The model folder, in the layout of Hugging Face: config.json, model.safetensors, tokenizer.json, …"""

FAQ = Path(__file__).parent / "faq.toml"


def questions() -> dict[str, str]:
    """Every question the model was taught, with the answer that greedy decoding returns."""
    entries = tomllib.loads(FAQ.read_text(encoding="utf-8"))["faq"]
    return {question: entry["answer"] for entry in entries for question in entry["questions"]}

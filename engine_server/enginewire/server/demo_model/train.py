"""Make `builtin:demo` from nothing: `python -m enginewire.server.demo_model.train [--output DIR] [--check]`.

Holds the model's shape, the training loop and the files it writes. Deterministic: the same machine and
the same versions of torch and tokenizers give the same bytes. Knows nothing about the engine that serves it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
import transformers
from safetensors.torch import save
from tokenizers import Tokenizer
from torch import Tensor

from enginewire.server.demo_model import PATH, questions
from enginewire.server.demo_model.corpus import BOS, EOS, PAD, Row, conversation, epoch
from enginewire.server.demo_model.tokenizer import (
    CONTEXT_LENGTH,
    save_tokenizer,
    special_id,
    train_tokenizer,
)
from enginewire.server.demo_model.tool_calls import taught_calls, tool_epoch

IGNORED = -100  # the label that cross_entropy leaves out
RECALL_ROWS = 64
CHECKSUMS = "SHA256SUMS"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long and how fast to train. `batch_rows` rows of similar length make a batch."""

    steps: int = 1700
    batch_rows: int = 32
    peak_learning_rate: float = 4e-3
    warmup_steps: int = 60
    weight_decay: float = 0.02
    seed: int = 20
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` and `labels` are [rows, tokens], padded on the right; labels are the ids shifted by one."""

    ids: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True)
class Recall:
    """How well answers are known: questions greedy decoding gets wrong, and the least top-1/top-2 margin."""

    wrong: tuple[str, ...]
    least_margin: float


def architecture(tokenizer: Tokenizer) -> dict[str, object]:
    """The content of config.json; spelt out, so that it does not change with transformers."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.05,
        "bos_token_id": special_id(tokenizer, BOS),
        "eos_token_id": special_id(tokenizer, EOS),
        "pad_token_id": special_id(tokenizer, PAD),
        "dtype": "float32",
    }


def make_batch(tokenizer: Tokenizer, rows: Sequence[Row]) -> Batch:
    """Encode and pad rows; only the learned spans get labels."""
    encoded = [_encode(tokenizer, row) for row in rows]
    longest = max(len(ids) for ids, _ in encoded)
    pad = special_id(tokenizer, PAD)
    ids = [ids + [pad] * (longest - len(ids)) for ids, _ in encoded]
    labels = [labels[1:] + [IGNORED] * (longest - len(labels) + 1) for _, labels in encoded]
    return Batch(torch.tensor(ids), torch.tensor(labels))


def _encode(tokenizer: Tokenizer, row: Row) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    labels: list[int] = []
    for span in row:
        span_ids = tokenizer.encode(span.text).ids
        ids += span_ids
        labels += span_ids if span.learned else [IGNORED] * len(span_ids)
    return ids, labels


def batches(tokenizer: Tokenizer, faq: Mapping[str, str], recipe: Recipe) -> Iterator[Batch]:
    """Epochs without end, in batches of rows of similar length, in random order."""
    random = Random(recipe.seed)
    while True:
        rows = [*epoch(faq, random), *tool_epoch(faq, random)]
        rows.sort(key=lambda row: sum(len(span.text) for span in row))
        groups = [rows[at : at + recipe.batch_rows] for at in range(0, len(rows), recipe.batch_rows)]
        random.shuffle(groups)
        yield from (make_batch(tokenizer, group) for group in groups)


def train_model(
    tokenizer: Tokenizer, faq: Mapping[str, str], recipe: Recipe
) -> transformers.LlamaForCausalLM:
    """A trained model in float32 whose weights are all exact in bfloat16, too."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(recipe.threads)
    torch.use_deterministic_algorithms(True)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig.from_dict(architecture(tokenizer)))
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=recipe.weight_decay)
    for step, batch in enumerate(islice(batches(tokenizer, faq, recipe), recipe.steps)):
        optimizer.param_groups[0]["lr"] = learning_rate(recipe, step)
        loss = torch.nn.functional.cross_entropy(
            model(batch.ids, use_cache=False).logits.flatten(0, 1),
            batch.labels.flatten(),
            ignore_index=IGNORED,
        )
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", file=sys.stderr)
    _round(model)
    return model


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up, then linear decay to zero at the last step."""
    rise = (step + 1) / recipe.warmup_steps
    fall = (recipe.steps - step) / recipe.steps
    return recipe.peak_learning_rate * min(1.0, rise, fall)


@torch.no_grad()
def _round(model: transformers.LlamaForCausalLM) -> None:
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())


@torch.inference_mode()
def recall(model: transformers.LlamaForCausalLM, tokenizer: Tokenizer, rows: Mapping[str, Row]) -> Recall:
    """Ask every question as the chat template renders it, and look at each position of the answer.

    Greedy decoding is exact when the right token is on top at every position of the right answer.
    """
    asked = sorted(rows, key=lambda question: sum(len(span.text) for span in rows[question]))
    wrong: list[str] = []
    least = float("inf")
    for group in (asked[at : at + RECALL_ROWS] for at in range(0, len(asked), RECALL_ROWS)):
        batch = make_batch(tokenizer, [rows[question] for question in group])
        known = batch.labels != IGNORED
        top = model(batch.ids, use_cache=False).logits.float().topk(2)
        right = ((top.indices[..., 0] == batch.labels) | ~known).all(dim=1).tolist()
        wrong += [question for question, is_right in zip(group, right, strict=True) if not is_right]
        least = min(least, float((top.values[..., 0] - top.values[..., 1])[known].min()))
    return Recall(tuple(wrong), least)


def save_model(model: transformers.LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write every file of the model folder, and SHA256SUMS over them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, folder)
    config = architecture(tokenizer)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation | {"do_sample": False})
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in model.state_dict().items()}
    del tensors["lm_head.weight"]  # tied to the embeddings
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / CHECKSUMS).write_text(checksums(folder))


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def checksums(folder: Path) -> str:
    """One line per file, as `sha256sum` prints them."""
    files = sorted(path for path in folder.iterdir() if path.name != CHECKSUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def taught_answers(faq: Mapping[str, str]) -> dict[str, Row]:
    """Question → its conversation, of the whole FAQ."""
    return {question: conversation([(question, answer)]) for question, answer in faq.items()}


def build(folder: Path, recipe: Recipe) -> dict[str, Recall]:
    """Train everything and write it to `folder`; returns how well answers and calls are known."""
    faq = questions()
    tokenizer = train_tokenizer(faq)
    model = train_model(tokenizer, faq, recipe)
    save_model(model, tokenizer, folder)
    taught = {"answers": taught_answers(faq), "calls of tools": taught_calls()}
    return {name: recall(model, tokenizer, rows) for name, rows in taught.items()}


def main() -> int:
    """Exit code 0 when every answer is recalled and, with --check, the files are those of the package."""
    parser = argparse.ArgumentParser(description="train builtin:demo")
    parser.add_argument("--output", type=Path, default=PATH, help="folder to write (default: the package's)")
    parser.add_argument("--check", action="store_true", help="train into a temporary folder and compare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.check else options.output
        recalls = build(folder, Recipe())
        same = not options.check or checksums(folder) == (PATH / CHECKSUMS).read_text()
        print(checksums(folder), end="")
    for name, known in recalls.items():
        print(f"wrong {name}: {len(known.wrong)}, least top-1/top-2 margin: {known.least_margin:.2f}")
    if not same:
        print("these files differ from those of the package", file=sys.stderr)
    return 0 if same and not any(known.wrong for known in recalls.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

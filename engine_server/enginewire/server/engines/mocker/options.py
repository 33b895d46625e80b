"""What a mocker can be told: sizes, speeds, scripted answers and faults.

Knows nothing about how they are carried out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from enginewire.server.engines.mocker.tokenizer import VOCAB_SIZE
from enginewire.server.handoff.options import Role, TransferOptions

Script = Mapping[tuple[int, ...] | None, tuple[int, ...]]
"""Answer per prompt, as token ids; the key None answers every other prompt."""

FaultKind = Literal["step", "stall", "forward"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure on purpose, written `kind:where`.

    `step:17` fails every running request in step 17, `stall:5` never ends step 5, and `forward:ID`
    fails the request of that id in its first step.
    """

    kind: FaultKind
    where: str

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Raise ValueError for anything but `step:N`, `stall:N` and `forward:ID`."""
        kind, _, where = text.partition(":")
        if (kind in ("step", "stall") and where.isdecimal()) or (kind == "forward" and where):
            return cls(cast(FaultKind, kind), where)
        raise ValueError(f"fault: expected step:N, stall:N or forward:ID, got {text[:64]!r}")

    def stalls(self, step: int) -> bool:
        """True if that step must never end."""
        return self.kind == "stall" and step >= int(self.where)

    def fails(self, request_id: str, step: int) -> bool:
        """True if a request that runs in that step must fail."""
        if self.kind == "forward":
            return self.where == request_id
        return self.kind == "step" and int(self.where) == step


@dataclass(frozen=True, slots=True)
class MockerOptions:
    """Sizes in tokens, blocks and sequences; times in milliseconds, 0 = as fast as possible.

    A role other than aggregated needs `transfer`.
    """

    model: str = "mocker"
    served_model_name: str = ""
    aliases: tuple[str, ...] = ()
    vocab_size: int = VOCAB_SIZE
    context_length: int = 4096
    block_size: int = 16
    num_kv_blocks: int = 65_536
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    ttft_ms: float = 0.0
    itl_ms: float = 0.0
    seed: int | None = None
    script: Script = field(default_factory=dict)
    fault: str = ""
    role: Role = "aggregated"
    transfer: TransferOptions | None = None

    @property
    def window(self) -> int:
        """Tokens of prompt and output together: what the context and the KV blocks have room for."""
        return min(self.context_length, self.num_kv_blocks * self.block_size)

    def __post_init__(self) -> None:
        if self.vocab_size < VOCAB_SIZE:
            raise ValueError(f"vocab_size: must be at least {VOCAB_SIZE}, got {self.vocab_size}")
        for name in ("block_size", "num_kv_blocks", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.window < 2:
            raise ValueError(f"context_length, num_kv_blocks: must have room for 2 tokens, got {self.window}")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ValueError("max_num_batched_tokens: must be above max_num_seqs, or prompts would starve")
        if min(self.ttft_ms, self.itl_ms) < 0:
            raise ValueError("ttft_ms, itl_ms: must not be negative")
        if (self.role == "aggregated") != (self.transfer is None):
            raise ValueError("transfer belongs to the roles prefill and decode")
        if self.fault:
            Fault.parse(self.fault)
        self._check_script()

    def _check_script(self) -> None:
        for prompt, answer in self.script.items():
            if not answer:
                raise ValueError("script: an answer must not be empty")
            if max(*answer, *(prompt or (0,)), 0) >= self.vocab_size:
                raise ValueError(f"script: token ids must be below {self.vocab_size}")


def script_from_json(text: str) -> Script:
    """Read `[{"prompt": …, "answer": …}, …]`, each a string (its UTF-8 bytes) or a list of token ids.

    An entry without a prompt answers every prompt that has no entry. Raises ValueError.
    """
    entries = json.loads(text)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("script: expected a JSON list of objects")
    return {_prompt(entry.get("prompt")): _token_ids(entry.get("answer")) for entry in entries}


def _prompt(value: object) -> tuple[int, ...] | None:
    return None if value is None else _token_ids(value)


def _token_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, str):
        return tuple(value.encode())
    if isinstance(value, Sequence) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    raise ValueError("script: expected a string or a list of token ids")

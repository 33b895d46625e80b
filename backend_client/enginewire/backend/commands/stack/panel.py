"""What is served where, for who has just started it: one panel on a terminal, plain lines elsewhere.

Knows nothing about how it was started.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from enginewire import v1 as pb
from enginewire.backend.commands.typed_name import typed_name

QUESTION: Final = "What is Enginewire?"


@dataclass(frozen=True, slots=True)
class Served:
    """What answers now. `addresses` are those of gRPC, HTTP and, where it was asked for, SMG.

    `model` is what callers of HTTP call it.
    """

    addresses: Sequence[str]
    info: pb.GetEngineInfoResponse
    model: str
    device: str = ""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """A name and what is behind it; what the engine does not say has no row."""
        grpc, http, *smg = self.addresses
        config = self.info.config
        rows = [
            ("page", http),
            ("API", f"{http}/v1"),
            ("gRPC", grpc),
            *(("SMG", address) for address in smg),
            ("model", self.model),
            ("engine", f"{self.info.engine_name} {self.info.engine_version}"),
            ("device", self.device),
            ("KV", kv_of(config)),
            ("limits", limits_of(config)),
        ]
        return [(name, value) for name, value in rows if value.strip()]

    @property
    def commands(self) -> list[str]:
        """What to type in another terminal."""
        body = json.dumps({"messages": [{"role": "user", "content": QUESTION}]})
        return [
            f"curl {self.addresses[1]}/v1/chat/completions -H 'content-type: application/json'"
            f" -d {shlex.quote(body)}",
            f"{typed_name()} chat {shlex.quote(self.addresses[0])}",
        ]


def kv_of(config: pb.EngineConfig) -> str:
    """The KV cache: blocks, and how many tokens they hold."""
    if not config.total_kv_blocks or not config.kv_cache_block_size:
        return ""
    tokens = config.total_kv_blocks * config.kv_cache_block_size
    return f"{config.total_kv_blocks:,} blocks of {config.kv_cache_block_size} = {tokens:,} tokens"


def limits_of(config: pb.EngineConfig) -> str:
    """What one request, one step and the queue may take."""
    queue = config.limits.max_num_queued_reqs
    parts = [
        (config.context_length, "tokens in a request"),
        (config.max_num_seqs, "sequences at a time"),
        (config.max_num_batched_tokens, "tokens in a step"),
        (queue, "requests in the queue"),
    ]
    return ", ".join(f"{count:,} {what}" for count, what in parts if count)


def print_panel(served: Served, out: TextIO) -> None:
    """Show it."""
    if not out.isatty():
        lines = [f"{name}: {value}" for name, value in served.rows]
        print("\n".join([*lines, *served.commands]), file=out, flush=True)
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in served.rows:
        table.add_row(Text(name, style="dim"), Text(value))
    console = Console(file=out, highlight=False)
    console.print(Panel(table, title="enginewire serve", title_align="left", expand=False))
    # Outside the panel, and never broken: so they can be copied.
    for command in served.commands:
        console.print(f"$ {command}", style="bold", markup=False, soft_wrap=True)
    console.print("Ctrl-C ends all of it.", style="dim")

"""The mocker, with a note of when it emitted which token. For `latency.py`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import GenerateContext, StepListener, StepOutputs
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions

# An engine from outside has no options of its own.
STAMPS_VARIABLE = "ENGINEWIRE_BENCHMARK_STAMPS"
STEP_VARIABLE = "ENGINEWIRE_BENCHMARK_STEP_MS"


class StampingMocker(MockerEngine):
    """Writes its notes at the end: per step the time in nanoseconds, and each row's request and position."""

    def __init__(self, options: ServerOptions) -> None:
        step_ms = float(os.environ[STEP_VARIABLE])
        super().__init__(MockerOptions(max_num_seqs=options.max_num_seqs, itl_ms=step_ms))
        self._notes: list[tuple[int, Sequence[GenerateContext], Sequence[int]]] = []

    def set_step_listener(self, listener: StepListener) -> None:
        def note(outputs: StepOutputs) -> None:
            # Every process of a machine has the same monotonic clock.
            self._notes.append((time.monotonic_ns(), outputs.contexts, outputs.positions))
            listener(outputs)

        super().set_step_listener(note)

    async def cleanup(self) -> None:
        await super().cleanup()
        self._write(
            [
                [stamp, [context.request_id for context in contexts], list(positions)]
                for stamp, contexts, positions in self._notes
            ]
        )

    def _write(self, notes: object) -> None:
        Path(os.environ[STAMPS_VARIABLE]).write_text(json.dumps(notes))

"""One frame of a multiplexed stream: tokens as columns, everything else behind them as events.

Knows nothing about readers, their pace or requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from enginewire import v1 as pb

Row = tuple[int, int, int, int]
"""Handle, index, position and token id of one token."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one choice."""

    position: int
    token_ids: list[int]


def frame_of(
    step: int, rows: Sequence[Row], events: Sequence[pb.HandleEvent]
) -> pb.GenerateMultiplexedResponse:
    """One frame: the rows, as one for each choice, then the events."""
    handles, indexes, positions, token_ids = zip(*rows, strict=True) if rows else ((), (), (), ())
    counts: Sequence[int] = ()
    has_indexes = any(indexes)
    if len(set(zip(handles, indexes, strict=True) if has_indexes else handles)) < len(rows):
        runs = runs_of(rows)
        handles, indexes = zip(*runs, strict=True)
        positions = tuple(run.position for run in runs.values())
        token_ids = tuple(chain.from_iterable(run.token_ids for run in runs.values()))
        counts = [len(run.token_ids) for run in runs.values()]
    return pb.GenerateMultiplexedResponse(
        step=step,
        handles=handles,
        indexes=indexes if has_indexes else (),
        token_counts=counts,
        first_output_positions=positions,
        token_ids=token_ids,
        events=events,
    )


def runs_of(rows: Iterable[Row]) -> dict[tuple[int, int], Run]:
    """The tokens of each handle and index."""
    runs: dict[tuple[int, int], Run] = {}
    for handle, index, position, token_id in rows:
        if (run := runs.get((handle, index))) is None:
            runs[handle, index] = Run(position, [token_id])
        else:
            run.token_ids.append(token_id)
    return runs

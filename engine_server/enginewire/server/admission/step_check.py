"""What an engine hands over in one step, held against the contract, before anybody reads it.

Always what costs little per step: the columns, the vocabulary. Fully, with a `RequestCheck` per request, when
asked to. Knows nothing about what becomes of a request whose engine made a mistake.
"""

from __future__ import annotations

from enginewire.server.admission.live import Live
from enginewire.server.engines.interface import GenerateContext, StepOutputs

Mistakes = dict[GenerateContext, str]
"""What is wrong, by the request that it is wrong for: the first mistake of each."""


def mistakes_of(outputs: StepOutputs, vocab_size: int, *, is_full: bool) -> Mistakes:
    """The mistakes of a step; rows that cannot be read, or belong to no request, are taken out of it."""
    found: Mistakes = {}
    # Written out: this runs for every step, and a loop over the columns would cost more than they do.
    length = len(outputs.contexts)
    if not length == len(outputs.indexes) == len(outputs.positions) == len(outputs.token_ids):
        columns = (outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids)
        sizes = [len(column) for column in columns]
        found.update(
            dict.fromkeys(outputs.contexts, f"columns of a step must be of equal length, got {sizes}")
        )
        _clear_columns(outputs)
    # In C, and once per step: the hot path has nothing else to look at.
    if outputs.token_ids and not 0 <= min(outputs.token_ids) <= max(outputs.token_ids) < vocab_size:
        for context, token_id in zip(outputs.contexts, outputs.token_ids, strict=True):
            if not 0 <= token_id < vocab_size:
                found.setdefault(context, f"token id {token_id} is not below vocab_size {vocab_size}")
    for context, output in outputs.outputs:
        if output.token_ids and max(output.token_ids) >= vocab_size:
            found.setdefault(
                context, f"token id {max(output.token_ids)} is not below vocab_size {vocab_size}"
            )
    if is_full:
        _check_fully(outputs, found)
    return found


def _check_fully(outputs: StepOutputs, found: Mistakes) -> None:
    rows = zip(outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids, strict=True)
    for context, index, position, token_id in rows:
        check = context.sink.check if isinstance(context.sink, Live) else None
        if check is not None and (fault := check.row(index, position, token_id)):
            found.setdefault(context, fault)
    for context, output in outputs.outputs:
        check = context.sink.check if isinstance(context.sink, Live) else None
        if check is not None and (fault := check.output(output)):
            found.setdefault(context, fault)


def _clear_columns(outputs: StepOutputs) -> None:
    for column in (outputs.contexts, outputs.indexes, outputs.positions, outputs.token_ids):
        column.clear()

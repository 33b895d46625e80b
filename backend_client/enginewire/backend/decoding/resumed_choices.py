"""Where the choices of an answer were cut: from the wire into their states, and back.

Sans-IO. Knows nothing about text, and of the engines only that the next one begins behind the cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from enginewire import v1 as pb
from enginewire.backend.decoding.choice_state import ChoiceState
from enginewire.backend.decoding.stop_conditions import InvalidStopConditions


def go_on(choices: Sequence[ChoiceState], resume: pb.Resume) -> None:
    """Begin behind what another backend has passed on.

    Raises InvalidStopConditions for a resume that no answer can have led to.
    """
    seen: set[int] = set()
    for place, each in enumerate(resume.choices):
        path = f"resume.choices[{place}]"
        if each.index >= len(choices) or each.index in seen:
            raise InvalidStopConditions(f"{path}.index", "must be in [0, n), each at most once")
        seen.add(each.index)
        choice = choices[each.index]
        choice.cum_log_probs = each.cum_log_probs if each.HasField("cum_log_probs") else None
        choice.go_on(list(each.generated_token_ids), is_finished=each.finished, path=path)
    if all(choice.is_finished for choice in choices):
        raise InvalidStopConditions("resume.choices", "must leave a choice to generate")


def resumed(choices: Sequence[ChoiceState]) -> list[pb.ResumedChoice]:
    """Where another engine has to continue; what the lost one sent beyond that is forgotten."""
    for choice in choices:
        choice.num_dropped = 0
        choice.engine_finished = choice.is_finished
    return [
        pb.ResumedChoice(
            index=index,
            generated_token_ids=choice.token_ids,
            finished=choice.is_finished,
            cum_log_probs=choice.cum_log_probs,
        )
        for index, choice in enumerate(choices)
    ]

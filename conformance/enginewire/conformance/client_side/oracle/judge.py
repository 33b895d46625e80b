"""Compares what came of a case with what is due. What is wrong first counts: the rest may follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.client_side.answer import DECODE_ERROR, Answer, Choice
from enginewire.conformance.client_side.oracle.case import Case
from enginewire.conformance.client_side.oracle.play import Played, value
from enginewire.conformance.client_side.oracle.predict import FAILED, Due, outputs, predict
from enginewire.conformance.client_side.stage import alphabet
from enginewire.conformance.wire.stream import reason_name

MOST_ATTEMPTS: Final = 5
"""Of one request, as the contract's table of retries says."""


KINDS: Final = (
    *("reason", "stop", "text", "ends", "tokens", "usage", "rows", "late", "told"),
    *("failed", "attempts", "resume", "broken"),
)
"""What can be wrong. The first ones are plain; the later ones may follow from them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind`: what is wrong, one of KINDS."""

    kind: str
    message: str
    expected: object = ""
    seen: object = ""


def judge(played: Played) -> Fault | None:
    """The first fault; None where everything is right."""
    return next(_faults(played), None)


def _faults(played: Played) -> Iterator[Fault]:
    case, answer, due = played.case, played.answer, predict(played.case)
    if answer.exchange.timed_out:
        yield Fault("failed", "the answer has no end", "an end", answer.described)
    yield from _attempts(played)
    if len(played.turns) <= case.refusals:
        return
    if case.lost_at is not None and len(played.turns) > case.refusals + 1:
        yield from _resume(played, case.lost_at)
    if _may_fail(played):
        yield from _until_it_failed(case, answer, due)
        return
    if answer.error and not (case.n == 1 and due[0].reason == "ERROR"):
        yield Fault("failed", "the request failed", "an answer", answer.described)
    for index, each in enumerate(due):
        yield from _choice(case, index, answer.choices.get(index, Choice()), each)
    if sorted(answer.choices) != list(range(case.n)):
        yield Fault("ends", "the choices are others", list(range(case.n)), sorted(answer.choices))
    yield from _usage(played)
    if not played.is_left:
        yield Fault("told", "the engine was not told that a stop ended the answer", "left", "still there")


def _attempts(played: Played) -> Iterator[Fault]:
    case, turns = played.case, played.turns
    if len(turns) > MOST_ATTEMPTS:
        yield Fault("attempts", "the request was sent too often", f"at most {MOST_ATTEMPTS}", len(turns))
    if len(turns) < min(2, case.refusals + 1):
        yield Fault("attempts", "a request refused for now was not sent again", "2 attempts", len(turns))
    if len(turns) <= case.refusals and not played.answer.failures:
        yield Fault("attempts", "a refused request passed for complete", "a failure", played.answer.described)
    for before, after in pairwise(turns[: case.refusals + 1]):
        waited = 1e3 * (after.exchange.started_at - (before.exchange.ended_at or 0.0))
        if waited < case.retry_after_ms:
            yield Fault(
                "attempts", "retry_after was not kept", f"{case.retry_after_ms} ms", f"{waited:.0f} ms"
            )


def _resume(played: Played, lost: int) -> Iterator[Fault]:
    """What the attempt behind the loss says of those before."""
    case, (before, after) = played.case, played.turns[played.case.refusals :][:2]
    sent = [0] * case.n
    for index, count, _ in outputs(case)[:lost]:
        sent[index] += count
    resume = after.part.resume
    named = {choice.index: choice for choice in resume.choices}
    for index, due in enumerate(predict(case)):
        handed = named.get(index, pb.ResumedChoice(index=index))
        tokens, is_over = list(handed.generated_token_ids), due.message < lost
        delivered = list(case.tokens[index][: sent[index]])
        fits = due.least_count <= len(tokens) <= due.count if is_over else len(tokens) == sent[index]
        if tokens != delivered[: len(tokens)] or not fits or handed.finished != is_over:
            expected = f"{'finished with' if is_over else 'open with'} {delivered}"
            seen = f"{'finished with' if handed.finished else 'open with'} {tokens}"
            yield Fault("resume", f"resume says something else of choice {index}", expected, seen)
    if resume.choices and resume.origin_lifetime_id != before.lifetime_id:
        message = "resume names another life of the engine"
        yield Fault("resume", message, before.lifetime_id, resume.origin_lifetime_id)


def _may_fail(played: Played) -> bool:
    """Failing is right, or as right as not."""
    case, answer = played.case, played.answer
    if case.repeat is not None:
        return True
    if case.lost_at is not None and len(played.turns) == case.refusals + 1:
        return True  # nobody has to go on
    unknown = any(alphabet.bytes_of(token) == b"" for tokens in case.tokens for token in tokens)
    return unknown and any(failure.startswith(DECODE_ERROR) for failure in answer.failures)


def _until_it_failed(case: Case, answer: Answer, due: Sequence[Due]) -> Iterator[Fault]:
    """What was delivered before a failure stays, and nothing was made up."""
    if not answer.failures:
        yield Fault("broken", "a broken answer passed for complete", "a failure", answer.described)
    is_violation = case.repeat is not None
    if is_violation and answer.reason != "PROTOCOL_VIOLATION":
        yield Fault("broken", "the reason is another one", "PROTOCOL_VIOLATION", answer.described)
    for index, choice in answer.choices.items():
        if index >= case.n:
            yield Fault("broken", "a choice that nobody asked for", case.n, index)
            continue
        if not due[index].text.startswith(choice.text):
            yield Fault("text", f"the text of choice {index} is another one", due[index].text, choice.text)
        yield from _shown(case, index, choice, due[index])
    for index, least in enumerate(_delivered(case)):
        seen = answer.choices.get(index, Choice()).num_tokens
        if seen < min(least, due[index].least_count):
            yield Fault("tokens", f"tokens of choice {index} are gone", least, seen)


def _delivered(case: Case) -> list[int]:
    """How many tokens of each choice came before what ended the answer."""
    counts = [0] * case.n
    for index, count, _ in outputs(case)[: case.repeat if case.lost_at is None else case.lost_at]:
        begin, end = counts[index], counts[index] + count
        if not all(map(alphabet.bytes_of, case.tokens[index][begin:end])):
            break
        counts[index] = end
    return counts


def _choice(case: Case, index: int, choice: Choice, due: Due) -> Iterator[Fault]:
    name = f"of choice {index}"
    ends = [reason_name(end.finish_reason) for end in choice.terminals]
    if len(ends) != 1 and due.reason != "ERROR":
        yield Fault("ends", f"the number of ends {name} is another one", 1, ends)
    if choice.outputs and ends and not choice.outputs[-1].finish_reason:
        yield Fault("ends", f"something came behind the end {name}", "nothing", choice.outputs[-1])
    if ends and ends != [due.reason]:
        yield Fault("reason", f"the finish reason {name} is another one", due.reason, ends)
    if not (due.text.startswith(choice.text) and choice.text.startswith(due.least_text)):
        yield Fault("text", f"the text {name} is another one", repr(due.text), repr(choice.text))
    if choice.tokens != list(case.tokens[index][: len(choice.tokens)]) or not (
        due.least_count <= len(choice.tokens) <= due.count
    ):
        tokens = list(case.tokens[index][: due.count])
        yield Fault("tokens", f"the token ids {name} are others", tokens, choice.tokens)
    if ends and due.reason not in FAILED:
        match = choice.terminals[0].stop_reason
        seen = match.text or (match.token_id if match.HasField("token_id") else None)
        if seen != (due.stop or due.stop_token):
            yield Fault("stop", f"the stop_reason {name} is another one", due.stop or due.stop_token, seen)
    yield from _shown(case, index, choice, due)


def _shown(case: Case, index: int, choice: Choice, due: Due) -> Iterator[Fault]:
    """Beside the tokens: their rows, their position, the text that is decided with them."""
    count, text = 0, ""
    for output in choice.outputs:
        if output.token_ids and output.first_output_position != count:
            seen = output.first_output_position
            yield Fault("tokens", f"first_output_position of choice {index} is wrong", count, seen)
        rows = [value(count + place) for place in range(len(output.token_ids))]
        if case.logprobs and list(output.logprobs.token_logprobs) != rows:
            yield Fault("rows", "the rows are not those of the token ids beside them", rows, output)
        count, text = count + len(output.token_ids), text + output.text
        if output.finish_reason or not 0 < count <= len(due.shown):
            continue
        if not text.startswith(due.shown[count - 1]):
            message = f"after {count} tokens choice {index} has not shown what was decided"
            yield Fault("late", message, repr(due.shown[count - 1]), repr(text))


def _usage(played: Played) -> Iterator[Fault]:
    case, answer = played.case, played.answer
    data = [item.data for item in answer.items if item.HasField("data")]
    places = [place for place, output in enumerate(data) if output.HasField("completion_usage")]
    if not data or any(end in FAILED for end in case.ends):
        return
    last = max((place for place, output in enumerate(data) if output.finish_reason), default=-1)
    if places != [last]:
        yield Fault("usage", "the usage is not on the last terminal output alone", [last], places)
        return
    prompt, usage = len(played.scene.prompt), data[last].completion_usage
    completion = sum(len(choice.tokens) for choice in answer.choices.values())
    expected = (prompt, completion, prompt + completion)
    seen = (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    if seen != expected:
        yield Fault("usage", "usage (prompt, completion, total) is wrong", expected, seen)


OF_KIND: Final = {
    "attempts": "CLI-28",
    "broken": "CLI-25",
    "late": "CLI-17",
    "resume": "CLI-29",
    "rows": "CLI-15",
    "told": "CLI-06",
}
"""Ids of what belongs to one whatever the case is."""


def requirement(fault: Fault, case: Case) -> str:
    """The id that a fault breaks in the smallest case that has it: by the option without which it is gone."""
    if fault.kind in OF_KIND:
        return OF_KIND[fault.kind]
    if case.lost_at is not None:
        return "CLI-30"
    if fault.kind == "usage":
        return "CLI-24"
    if case.refusals:
        return "CLI-28"
    if case.n > 1:
        return "CLI-22"
    if case.prompt and fault.kind == "text":
        return "CLI-34"
    if case.ends[0] in FAILED:
        return "CLI-23"
    return _of_stops(fault, case) if case.stop else _of_tokens(fault, case)


def _of_stops(fault: Fault, case: Case) -> str:
    if case.ignore_eos:
        return "CLI-21"
    if case.min_tokens:
        due = predict(case)[0]
        return "CLI-19" if due.stop else "CLI-07"
    if fault.kind == "stop" or len(case.stop) > 1:
        return "CLI-18"
    if case.include_stop_str_in_output:
        return "CLI-04"
    if fault.kind == "tokens":
        return "CLI-06"
    return "CLI-03" if len(case.tokens[0]) > 1 else "CLI-02"


def _of_tokens(fault: Fault, case: Case) -> str:
    if len(case.tokens[0]) > case.max_tokens:
        return "CLI-08"
    if case.stop_token_ids or case.stop_token_ids_visible or case.stop_token_ids_hidden:
        return "CLI-20"
    if case.ends[0] == "EOS" and case.tokens[0]:
        return "CLI-20"
    return "CLI-05" if fault.kind == "text" else "CLI-22"

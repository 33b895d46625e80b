"""Which tokens an answer may not have: those that are not allowed, and bad words."""

from __future__ import annotations

from enginewire.conformance.running.monitor.facts import Answer
from enginewire.conformance.running.monitor.invariant import of_answers
from enginewire.conformance.wire.violation import expect


@of_answers("SAM-13", needs=("SEQ-01",))
def only_allowed_ids_come(answer: Answer) -> None:
    """In each choice, however it ends; but what ends a thought comes whatever is allowed."""
    if answer.body.stop_conditions.HasField("max_thinking_tokens"):
        return
    allowed = frozenset(answer.body.sampling_options.allowed_token_ids)
    for index, choice in answer.choices.items() if allowed else ():
        others = [token for token in choice.tokens if token not in allowed]
        message = f"choice {index} has a token that is not allowed"
        expect(not others, message, expected=sorted(allowed)[:16], seen=others[:1])


@of_answers("SAM-14", needs=("SEQ-01", "STR-03", "STR-05", "STR-06"))
def bad_words_do_not_come(answer: Answer) -> None:
    """Nor does one that began among the tokens that were handed in. But what ends a thought comes."""
    if answer.body.stop_conditions.HasField("max_thinking_tokens"):
        return
    words = [tuple(word.token_ids) for word in answer.body.sampling_options.bad_words_token_ids]
    for index, choice in answer.choices.items() if words else ():
        handed = answer.resumed[index].generated_token_ids if index in answer.resumed else ()
        tokens = (*handed, *choice.tokens)
        # One without tokens, which should have been refused, forbids nothing.
        for word in filter(None, words):
            ends = range(max(len(handed) + 1, len(word)), len(tokens) + 1)
            came = any(tokens[end - len(word) : end] == word for end in ends if tokens[end - 1] == word[-1])
            expect(not came, f"choice {index} has a bad word", expected="none", seen=list(word))

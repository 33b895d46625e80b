import pytest
from hypothesis import given, strategies as st

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.protocol_violation import ProtocolViolation
from enginewire.backend.decoding.request_decoder import MAX_CHOICES, RequestDecoder
from enginewire.backend.decoding.stop_conditions import InvalidStopConditions, StopConditions
from enginewire.backend.decoding.vocabulary import Vocabulary
from tests.backend.decoding import toy_tokenizers as toy

BYTE_LEVEL = toy.byte_level()
VOCABULARY = Vocabulary(BYTE_LEVEL)
EOS = 0


def spell(text: str) -> list[int]:
    """One id per character."""
    return [BYTE_LEVEL.token_to_id(character) for character in text]


def request(
    n: int = 1, *, stop: tuple[str, ...] = (), max_tokens: int | None = None, with_tokens: bool = False
) -> RequestDecoder:
    conditions = StopConditions(stop=stop, max_tokens=max_tokens, eos_token_ids=frozenset({EOS}))
    return RequestDecoder(
        VOCABULARY,
        conditions,
        num_choices=n,
        prompt=[EOS] * 5,
        vocab_size=VOCABULARY.size,
        with_tokens=with_tokens,
    )


def output(spelled: str, position: int = 0, *, index: int = 0, **fields: object) -> pb.LLMEngineOutput:
    return pb.LLMEngineOutput(
        token_ids=spell(spelled),
        first_output_position=position,
        index=index,
        **fields,  # type: ignore[arg-type]  # the message checks its own fields
    )


def taken(decoder: RequestDecoder, message: pb.LLMEngineOutput) -> BackendOutput:
    result = decoder.process(message)
    assert result is not None
    return result


def usage(completion: int, prompt: int = 5) -> pb.CompletionUsage:
    return pb.CompletionUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )


def test_rows_and_outputs_give_the_same() -> None:
    rows, messages = request(stop=("cd",)), request(stop=("cd",))
    for position, character in enumerate("abcd"):
        row = rows.process_tokens(0, position, spell(character))
        assert row == messages.process(output(character, position))
    assert rows.is_finished


@given(
    st.text("abcd", max_size=12),
    st.lists(st.text("abcd", min_size=1, max_size=3), max_size=3),
    st.none() | st.integers(1, 12),
    st.booleans(),
)
def test_ids_one_by_one_and_all_at_once_give_the_same(
    text: str, stop: list[str], max_tokens: int | None, with_tokens: bool
) -> None:
    one_by_one, at_once = (
        request(stop=tuple(stop), max_tokens=max_tokens, with_tokens=with_tokens) for _ in range(2)
    )
    ids = spell(text)
    rows = [one_by_one.process_tokens(0, place, [token_id]) for place, token_id in enumerate(ids)]
    parts = [row for row in rows if row is not None]
    whole = at_once.process_tokens(0, 0, ids)
    assert whole is not None
    assert "".join(part.text for part in parts) == whole.text
    assert [token_id for part in parts for token_id in part.token_ids] == list(whole.token_ids)
    assert [token for part in parts for token in part.tokens or ()] == list(whole.tokens or ())
    endings = [(part.finish_reason, part.stop_reason) for part in parts if part.finish_reason]
    assert endings == [(whole.finish_reason, whole.stop_reason)] * at_once.is_finished
    assert one_by_one.resume() == at_once.resume()


@pytest.mark.parametrize("n", [0, MAX_CHOICES + 1])
def test_a_number_of_choices_that_no_engine_has_is_rejected(n: int) -> None:
    with pytest.raises(InvalidStopConditions, match=r"^sampling_options\.n: "):
        request(n)


def test_row_8_each_choice_has_its_own_decoder_and_one_terminal() -> None:
    decoder = request(n=2, stop=("b",))
    assert taken(decoder, output("ab", index=0)).finish_reason == pb.FINISH_REASON_STOP
    assert not decoder.is_finished
    other = taken(decoder, output("ac", index=1))
    assert (other.text, other.is_terminal) == ("ac", False)
    last = taken(decoder, output("d", 2, index=1, finish_reason=pb.FINISH_REASON_LENGTH))
    assert (last.text, last.finish_reason) == ("d", pb.FINISH_REASON_LENGTH)
    assert decoder.is_finished


@pytest.mark.parametrize("reason", [pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CANCELLED])
def test_row_10_an_engine_failure_wins_over_a_stop_in_the_same_chunk(
    reason: pb.FinishReason.ValueType,
) -> None:
    end = taken(request(stop=("b",)), output("abc", finish_reason=reason, error_message="boom"))
    assert (end.finish_reason, end.stop_reason, end.text, end.error_message) == (reason, None, "a", "boom")


def test_row_10_length_with_a_stop_in_the_text_becomes_stop() -> None:
    end = taken(request(stop=("b",)), output("ab", finish_reason=pb.FINISH_REASON_LENGTH))
    assert (end.finish_reason, end.stop_reason, end.text) == (pb.FINISH_REASON_STOP, "b", "a")


def test_row_11_withheld_text_is_flushed_when_the_engine_finishes() -> None:
    decoder = request(stop=("bcd",))
    assert taken(decoder, output("abc")).text == "a"
    end = taken(decoder, pb.LLMEngineOutput(first_output_position=3, finish_reason=pb.FINISH_REASON_LENGTH))
    assert (end.text, end.token_ids, end.finish_reason) == ("bc", [], pb.FINISH_REASON_LENGTH)


def test_row_12_usage_is_counted_up_to_a_local_stop() -> None:
    decoder = request(stop=("b",))
    end = taken(decoder, output("abcd"))
    assert end.completion_usage == usage(2)
    assert decoder.needs_abort


def test_row_12_details_of_the_engines_usage_are_kept() -> None:
    sent = usage(1)
    sent.prompt_tokens_details.cached_tokens = 4
    end = taken(request(), output("a", finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=sent))
    assert end.completion_usage == sent


def test_usage_rides_on_the_last_terminal_only() -> None:
    decoder = request(n=2)
    first = taken(decoder, output("a", finish_reason=pb.FINISH_REASON_LENGTH))
    last = taken(decoder, output("ab", index=1, finish_reason=pb.FINISH_REASON_EOS))
    assert (first.completion_usage, last.completion_usage) == (None, usage(3))


def test_an_engine_that_finished_needs_no_abort() -> None:
    decoder = request(stop=("b",))
    taken(decoder, output("ab", finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage(2)))
    assert decoder.is_finished
    assert not decoder.needs_abort


def test_stale_tokens_after_a_local_stop_are_dropped() -> None:
    decoder = request(n=2, stop=("b",))
    taken(decoder, output("abx"))
    assert decoder.process(output("c", 3)) is None
    assert decoder.process_tokens(0, 4, spell("d")) is None
    assert decoder.process(output("e", 5, finish_reason=pb.FINISH_REASON_LENGTH)) is None
    end = taken(
        decoder, output("f", index=1, finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage(7))
    )
    assert end.completion_usage == usage(3)


@pytest.mark.parametrize(
    ("messages", "which"),
    [
        ([output("a", index=5)], "index 5 of n=1"),
        (
            [output("a", finish_reason=pb.FINISH_REASON_LENGTH), output("b", 1)],
            "output after the terminal of choice 0",
        ),
        ([output("a", finish_reason=pb.FINISH_REASON_LENGTH)] * 2, "output after the terminal of choice 0"),
        ([output("a"), output("ab", 0)], "output position 0 where 1 was due"),
        ([output("a"), output("b", 3)], "output position 3 where 1 was due"),
        ([output("a", 1)], "output position 1 where 0 was due"),
        (
            [pb.LLMEngineOutput(token_ids=[1, VOCABULARY.size])],
            f"token id {VOCABULARY.size} with a vocabulary of {VOCABULARY.size}",
        ),
        ([output("a", finish_reason=99)], "unknown finish reason 99"),
        (
            [output("a", finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage(7))],
            "usage of 7 completion tokens, 1 sent",
        ),
        (
            [output("a", finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage(1, prompt=9))],
            "usage of 9 prompt tokens, 5 requested",
        ),
        (
            [
                output(
                    "a",
                    finish_reason=pb.FINISH_REASON_LENGTH,
                    completion_usage=pb.CompletionUsage(prompt_tokens=5, completion_tokens=1, total_tokens=7),
                )
            ],
            "usage total 7 is not the sum",
        ),
        ([output("ab", logprobs=pb.Logprobs(token_logprobs=[-1]))], "1 logprobs for 2 tokens"),
        (
            [output("a", logprobs=pb.Logprobs(token_logprobs=[float("nan")]))],
            "a log-probability that is not a finite number",
        ),
        (
            [output("a", logprobs=pb.Logprobs(token_logprobs=[float("-inf")]))],
            "a log-probability that is not a finite number",
        ),
        (
            [
                output(
                    "a",
                    logprobs=pb.Logprobs(
                        token_logprobs=[-1], top_n=1, top_token_ids=[1], top_logprobs=[float("nan")]
                    ),
                )
            ],
            "a log-probability that is not a finite number",
        ),
        ([output("a", cum_log_probs=float("nan"))], "a log-probability that is not a finite number"),
        (
            [
                output(
                    "a",
                    prompt_logprobs=pb.PromptLogprobs(
                        logprobs=pb.Logprobs(token_logprobs=[-1, float("nan")])
                    ),
                )
            ],
            "a log-probability that is not a finite number",
        ),
        (
            [
                output(
                    "a",
                    prompt_logprobs=pb.PromptLogprobs(
                        logprobs=pb.Logprobs(
                            token_logprobs=[-1, -1],
                            top_n=1,
                            top_token_ids=[1, 2],
                            top_logprobs=[-1, float("nan")],
                        )
                    ),
                )
            ],
            "a log-probability that is not a finite number",
        ),
        (
            [output("a", logprobs=pb.Logprobs(token_logprobs=[-1], top_n=2, top_token_ids=[1]))],
            "alternatives that are not 1 rows of 2",
        ),
        ([output("ab", tokens=["a"])], "1 token texts for 2 tokens"),
    ],
)
def test_row_18_a_hostile_engine_is_named_by_what_it_did(
    messages: list[pb.LLMEngineOutput], which: str
) -> None:
    decoder = request()
    for message in messages[:-1]:
        decoder.process(message)
    with pytest.raises(ProtocolViolation) as caught:
        decoder.process(messages[-1])
    assert str(caught.value) == f"protocol violation: {which}"


def test_row_18_the_rows_of_a_frame_are_checked_too() -> None:
    with pytest.raises(ProtocolViolation, match="index 1 of n=1"):
        request().process_tokens(1, 0, spell("a"))


def test_row_18_an_id_that_another_engine_has_is_no_id_of_this_one() -> None:
    [a] = spell("a")
    for _ in range(2):
        assert request().process_tokens(0, 0, [a]) == BackendOutput([a], None, "a")
    small = RequestDecoder(
        VOCABULARY, StopConditions(eos_token_ids=frozenset({EOS})), prompt=[EOS] * 5, vocab_size=a
    )
    with pytest.raises(ProtocolViolation, match="vocabulary"):
        small.process_tokens(0, 0, [a])


def test_row_18_nothing_follows_a_terminal_whoever_made_the_text() -> None:
    [a] = spell("a")
    request().process_tokens(0, 0, [a])
    ends = [
        output("a", 0, text="A", finish_reason=pb.FINISH_REASON_LENGTH),
        output("a", 0, finish_reason=pb.FINISH_REASON_ERROR),
        output("", 0, finish_reason=pb.FINISH_REASON_CANCELLED),
    ]
    for end in ends:
        decoder = request(2)
        decoder.meet(pb.Capabilities(stop_strings=True))
        decoder.process(end)
        with pytest.raises(ProtocolViolation, match="after the terminal"):
            decoder.process_tokens(0, len(end.token_ids), [a])
    resumed = request(2)
    resumed.go_on(pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=[a], finished=True)]))
    with pytest.raises(ProtocolViolation, match="after the terminal"):
        resumed.process_tokens(0, 1, [a])


def test_a_system_end_of_sequence_has_no_stop_reason() -> None:
    message = pb.LLMEngineOutput(token_ids=[EOS], finish_reason=pb.FINISH_REASON_EOS)
    end = taken(request(), message)
    assert (end.finish_reason, end.stop_reason, end.token_ids) == (pb.FINISH_REASON_EOS, None, [EOS])


@pytest.mark.parametrize(("asked", "expected"), [({7}, 7), (set(), None)])
def test_a_stop_that_only_the_engine_saw_is_reported_when_it_was_asked_for(
    asked: set[int], expected: int | None
) -> None:
    decoder = RequestDecoder(VOCABULARY, StopConditions(stop_token_ids=frozenset(asked)))
    stop = pb.StopMatch(token_id=7)
    end = taken(decoder, output("a", finish_reason=pb.FINISH_REASON_STOP, stop_match=stop))
    assert (end.finish_reason, end.stop_reason) == (pb.FINISH_REASON_STOP, expected)


def test_an_end_of_sequence_beyond_max_tokens_is_length() -> None:
    end = taken(request(max_tokens=1), output("ab", finish_reason=pb.FINISH_REASON_EOS))
    assert (end.token_ids, end.finish_reason) == (spell("a"), pb.FINISH_REASON_LENGTH)


def test_logprobs_are_cut_with_the_ids() -> None:
    rows = pb.Logprobs(
        token_logprobs=[-1, -2, -4], top_n=1, top_token_ids=[1, 2, 3], top_logprobs=[-1, -2, -4]
    )
    end = taken(request(stop=("b",)), output("abc", logprobs=rows, cum_log_probs=-7))
    assert (end.log_probs, end.cum_log_probs) == ([-1, -2], -3)
    assert end.top_logprobs == [[(1, -1)], [(2, -2)]]


def test_a_choice_that_a_caller_resumes_as_finished_keeps_what_a_stop_here_would_have_cut() -> None:
    decoder = request(2, stop=("b",))
    finished = pb.ResumedChoice(index=0, generated_token_ids=spell("abc"), finished=True)
    decoder.go_on(pb.Resume(choices=[finished]))
    assert decoder.num_passed_on == 3
    assert decoder.resume() == [finished, pb.ResumedChoice(index=1)]


def test_what_the_engine_adds_passes_through() -> None:
    handoff = pb.PrefillHandoff(params=b"kv")
    prompt = pb.PromptLogprobs(logprobs=pb.Logprobs(token_logprobs=[-1]))
    end = taken(request(), output("a", prefill_handoff=handoff, engine_data=b"{}", prompt_logprobs=prompt))
    assert (end.prefill_handoff, end.engine_data, end.prompt_logprobs) == (handoff, b"{}", prompt)


def test_a_decode_failure_ends_the_choice_with_an_error_and_no_stop() -> None:
    tokenizer = toy.stripped_byte_level(1, 1)
    decoder = RequestDecoder(Vocabulary(tokenizer), StopConditions(stop=("x",)))
    space = tokenizer.token_to_id("Ġ")
    end = decoder.process_tokens(0, 0, [space])
    assert end is not None
    assert (end.finish_reason, end.stop_reason) == (pb.FINISH_REASON_ERROR, None)
    assert end.error_message is not None
    assert end.error_message.startswith("decode error:")
    assert end.completion_usage is not None
    assert (end.token_ids, end.completion_usage.completion_tokens) == ([space], 1)
    assert decoder.needs_abort


def test_resume_says_where_another_engine_has_to_continue() -> None:
    decoder = request(n=3, stop=("b",))
    rows = pb.Logprobs(token_logprobs=[-2])
    taken(decoder, output("abc", index=0))
    taken(decoder, output("a", index=1, logprobs=rows, cum_log_probs=-2))
    assert decoder.resume() == [
        pb.ResumedChoice(index=0, generated_token_ids=spell("ab"), finished=True),
        pb.ResumedChoice(index=1, generated_token_ids=spell("a"), cum_log_probs=-2),
        pb.ResumedChoice(index=2),
    ]
    assert taken(decoder, output("c", 1, index=1)).text == "c"
    taken(decoder, output("d", 2, index=1, finish_reason=pb.FINISH_REASON_LENGTH))
    last = output("e", index=2, finish_reason=pb.FINISH_REASON_LENGTH, completion_usage=usage(6))
    assert taken(decoder, last).completion_usage == usage(6)


def test_a_stop_string_across_a_resume_is_found() -> None:
    decoder = request(stop=("abcd",))
    taken(decoder, output("ab"))
    decoder.resume()
    assert taken(decoder, output("cd", 2)).stop_reason == "abcd"


def test_tokens_have_their_own_text_whether_it_is_shown_or_not() -> None:
    decoder = request(stop=("bc",), with_tokens=True)
    stopped = taken(decoder, output("abcd"))
    assert (stopped.text, stopped.tokens) == ("a", ["a", "b", "c"])
    end = pb.LLMEngineOutput(token_ids=[*spell("a"), EOS], finish_reason=pb.FINISH_REASON_EOS)
    ended = taken(request(with_tokens=True), end)
    special = BYTE_LEVEL.decode([EOS], skip_special_tokens=False)
    assert (ended.text, ended.tokens) == ("a", ["a", special])
    assert special


def test_an_answer_goes_on_behind_its_prompt_in_every_choice() -> None:
    tokenizer = toy.byte_fallback()
    face = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🙈".encode()]
    the = tokenizer.token_to_id("▁the")
    for engine_text in (False, True):
        decoder = RequestDecoder(
            Vocabulary(tokenizer),
            StopConditions(),
            num_choices=2,
            prompt=[the, *face[:2]],
            validate_engine_decode=engine_text,
        )
        decoder.meet(pb.Capabilities())
        sent = {"text": "🙈 the"} if engine_text else {}
        for index in range(2):
            message = pb.LLMEngineOutput(token_ids=[*face[2:], the], index=index, **sent)
            assert taken(decoder, message).text == "🙈 the"
        assert not decoder.differences


def test_a_resumed_answer_goes_on_behind_its_prompt_and_its_tokens() -> None:
    tokenizer = toy.byte_fallback()
    face = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "🙈".encode()]
    decoder = RequestDecoder(Vocabulary(tokenizer), StopConditions(), prompt=face[:1])
    decoder.go_on(pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=face[1:3])]))
    row = decoder.process_tokens(0, 2, face[3:])
    assert row is not None
    assert row.text == "🙈"


def test_a_prompt_that_cannot_be_decoded_is_refused_by_name() -> None:
    tokenizer = toy.stripped_byte_level(1, 1)
    with pytest.raises(InvalidStopConditions, match=r"^token_ids: decode error: "):
        RequestDecoder(Vocabulary(tokenizer), StopConditions(), prompt=[tokenizer.token_to_id("Ġ")])


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "ab<|im_end|>"), (4, "abc<|im_end|>")])
def test_a_visible_stop_string_is_shown_although_its_token_is_skipped(min_tokens: int, text: str) -> None:
    conditions = StopConditions(
        stop=("<|im_end|>", "bx"), min_tokens=min_tokens, include_stop_str_in_output=True
    )
    end_of_turn = BYTE_LEVEL.token_to_id("<|im_end|>")
    ids = [*spell("ab"), end_of_turn, *spell("c"), end_of_turn]
    for chunk in (1, 5):
        decoder = RequestDecoder(VOCABULARY, conditions)
        outputs = [decoder.process_tokens(0, i, ids[i : i + chunk]) for i in range(0, len(ids), chunk)]
        shown = [output for output in outputs if output is not None]
        assert "".join(output.text for output in shown) == text
        assert (shown[-1].finish_reason, shown[-1].stop_reason) == (pb.FINISH_REASON_STOP, "<|im_end|>")

import itertools
from copy import copy

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

from enginewire.backend.decoding.decoder import Decoder, DecodeResult
from enginewire.backend.decoding.stop_conditions import (
    EosTokenDetected,
    HiddenStopSequenceDetected,
    HiddenStopTokenDetected,
    MaxTokensLimit,
    StopConditions,
    StopTrigger,
    VisibleStopSequenceDetected,
    VisibleStopTokenDetected,
)
from enginewire.backend.decoding.vocabulary import Vocabulary
from tests.backend.decoding import toy_tokenizers as toy
from tests.long import examples

BYTE_LEVEL = toy.byte_level()
VOCABULARY = Vocabulary(BYTE_LEVEL)
EOS, IM_END, TURN = range(3)
FAMILIES = toy.every_family()
VOCABULARIES = {name: Vocabulary(tokenizer) for name, tokenizer in FAMILIES.items()}


def spell(text: str) -> list[int]:
    """One id per character."""
    return [BYTE_LEVEL.token_to_id(character) for character in text.replace(" ", "Ġ")]


def decoder(*, skip_special_tokens: bool = True, with_tokens: bool = False, **conditions: object) -> Decoder:
    return Decoder(
        VOCABULARY,
        StopConditions(**conditions),  # type: ignore[arg-type]  # each test passes what it is about
        skip_special_tokens=skip_special_tokens,
        with_tokens=with_tokens,
    )


def run(subject: Decoder, chunks: list[list[int]]) -> tuple[str, list[int], StopTrigger | None]:
    results = [subject.process(chunk) for chunk in chunks] + [subject.finish()]
    ids = list(itertools.chain.from_iterable(result.token_ids for result in results))
    return "".join(result.text for result in results), ids, subject.stop_trigger


def run_looking_up(subject: Decoder, ids: list[int]) -> tuple[str, list[int], StopTrigger | None]:
    """Ids one by one, decoded where they are not known."""
    texts = []
    for token_id in ids:
        text = subject.take_known(subject.num_generated, token_id)
        texts.append(subject.process([token_id]).text if text is None else text)
    texts.append(subject.finish().text)
    return "".join(texts), subject.token_ids, subject.stop_trigger


def split(ids: list[int], sizes: list[int]) -> list[list[int]]:
    chunks, rest = [], ids
    for size in itertools.cycle([size for size in sizes if size] or [1]):
        if not rest:
            return chunks
        chunks.append(rest[:size])
        rest = rest[size:]
    return chunks


def offline(
    tokenizer: Tokenizer, prompt: list[int], ids: list[int], conditions: StopConditions, skip: bool
) -> tuple[str, StopTrigger | None]:
    """The text and the trigger, from the whole sequence at once."""
    hidden = conditions.system_token_ids | conditions.stop_token_ids
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    is_visible = conditions.include_stop_str_in_output
    found = VisibleStopSequenceDetected if is_visible else HiddenStopSequenceDetected
    used, trigger, unspoken = ids, None, ""
    for count, token_id in enumerate(ids, 1):
        trigger = None
        if count >= conditions.min_tokens:
            content = tokenizer.id_to_token(token_id)
            if token_id in conditions.system_token_ids:
                used, trigger = ids[: count - 1], EosTokenDetected(token_id)
            elif token_id in conditions.stop_token_ids:
                used, trigger = ids[: count - 1], HiddenStopTokenDetected(token_id)
            elif skip and content in special and content in conditions.stop:
                used, trigger = ids[: count - 1], found(content)
                unspoken = content if is_visible else ""
            elif token_id in conditions.stop_token_ids_visible:
                used, trigger = ids[:count], VisibleStopTokenDetected(token_id)
            elif count == conditions.max_tokens:
                used, trigger = ids[:count], MaxTokensLimit()
        if trigger:
            break
    num_before = len(toy.prompt_text(tokenizer, prompt, skip))

    def text_of(some: list[int]) -> str:
        shown = [*prompt, *(i for i in some if i not in hidden)]
        return toy.expected_text(tokenizer, shown, skip)[num_before:]

    text = text_of(used)
    below = used[: max(conditions.min_tokens - 1, 0)]
    floor = toy.common_prefix(text_of(below), text)
    matches = [
        (begin, -len(stop), stop)
        for stop in conditions.stop
        for begin in range(len(text))
        if text.startswith(stop, begin) and (begin + len(stop) > floor or not conditions.min_tokens)
    ]
    if not matches:
        return text + unspoken, trigger
    begin, _, stop = min(matches)
    return text[: begin + len(stop) if is_visible else begin], found(stop)


@pytest.mark.hypothesis
@pytest.mark.parametrize("name", FAMILIES)
def test_any_ids_chunks_and_conditions_give_the_offline_answer(name: str) -> None:
    tokenizer, vocabulary = FAMILIES[name], VOCABULARIES[name]
    some_ids = st.integers(0, vocabulary.size - 1) | st.integers(0, 30)
    special = sorted(vocabulary.special_ids)
    text = st.text(alphabet="ab theing.日本é👩\u200d👧", min_size=1, max_size=8)

    @st.composite
    def sequences(draw: st.DrawFn) -> list[int]:
        spoken = draw(st.lists(text.map(lambda t: tokenizer.encode(t).ids) | st.lists(some_ids, max_size=5)))
        return list(itertools.chain.from_iterable(spoken))

    @settings(max_examples=examples(80))
    @given(st.data(), sequences(), sequences(), st.lists(st.integers(0, 5), max_size=4), st.booleans())
    def check(data: st.DataObject, prompt: list[int], ids: list[int], sizes: list[int], skip: bool) -> None:
        cut = data.draw(st.integers(0, len(prompt)))
        prompt, ids = prompt[:cut], prompt[cut:] + ids
        behind = vocabulary.detokenizer(skip_special_tokens=skip, prompt=prompt)
        whole = toy.expected_text(tokenizer, prompt + ids, skip)
        parts = [whole[b : b + n] for b in range(len(whole)) for n in (1, 2, 3, 5)]
        parts = [part for part in parts if part and "\ufffd" not in part]
        stop = st.sampled_from(parts) | text if parts else text
        few = st.frozensets(some_ids, max_size=2)
        max_tokens = data.draw(st.none() | st.integers(1, 20))
        conditions = StopConditions(
            max_tokens=max_tokens,
            min_tokens=data.draw(st.integers(0, max_tokens or 20)),
            stop=tuple(data.draw(st.lists(stop | st.sampled_from(special), max_size=4))),
            stop_token_ids=data.draw(few),
            stop_token_ids_visible=data.draw(few),
            stop_token_ids_hidden=data.draw(few),
            eos_token_ids=frozenset({0}),
            ignore_eos=data.draw(st.booleans()),
            include_stop_str_in_output=data.draw(st.booleans()),
        )
        subject, singles, looking_up = (
            Decoder(vocabulary, conditions, skip_special_tokens=skip, stream=copy(behind)) for _ in range(3)
        )
        shown, kept, trigger = run(subject, split(ids, sizes))
        assert (shown, trigger) == offline(tokenizer, prompt, ids, conditions, skip)
        assert run(singles, [[token_id] for token_id in ids]) == (shown, kept, trigger)
        assert run_looking_up(looking_up, ids) == (shown, kept, trigger)
        assert kept == ids[: len(kept)]
        assert subject.num_generated == len(kept)

    check()


def test_stop_tokens_stay_in_the_ids_while_their_text_is_hidden() -> None:
    result = decoder(eos_token_ids={EOS}).process([*spell("ab"), EOS])
    assert result == DecodeResult("ab", [*spell("ab"), EOS], None, EosTokenDetected(EOS))


def test_tokens_describe_each_id_even_while_text_is_withheld() -> None:
    subject = decoder(stop=("abc",), with_tokens=True)
    result = subject.process(spell("xab"))
    assert (result.text, result.tokens, subject.withheld) == ("x", ["x", "a", "b"], "ab")


def test_hidden_stop_ids_win_over_stop_strings() -> None:
    result = decoder(stop=("b",), stop_token_ids=frozenset(spell("b"))).process(spell("ab"))
    assert (result.text, result.stop_trigger) == ("a", HiddenStopTokenDetected(spell("b")[0]))


def test_hidden_ids_win_over_visible_ones() -> None:
    both = frozenset(spell("b"))
    result = decoder(stop_token_ids=both, stop_token_ids_visible=both).process(spell("ab"))
    assert (result.text, result.stop_trigger) == ("a", HiddenStopTokenDetected(spell("b")[0]))


def test_end_of_sequence_wins_over_the_same_id_asked_for_by_the_caller() -> None:
    result = decoder(stop_token_ids={EOS}, eos_token_ids={EOS}).process([EOS])
    assert result.stop_trigger == EosTokenDetected(EOS)


def test_a_string_in_the_text_of_a_visible_stop_id_wins_over_the_id() -> None:
    result = decoder(stop=("b",), stop_token_ids_visible=frozenset(spell("b"))).process(spell("ab"))
    assert (result.text, result.stop_trigger) == ("a", HiddenStopSequenceDetected("b"))


def test_withheld_text_comes_before_newer_text_on_a_terminal() -> None:
    subject = decoder(stop=("abc",), max_tokens=4)
    assert subject.process(spell("ab")).text == ""
    assert subject.process(spell("xy")).text == "abxy"


def test_ids_after_a_stop_in_the_same_chunk_are_cut() -> None:
    result = decoder(stop=("b",), with_tokens=True).process(spell("abcd"))
    assert (result.text, result.token_ids, result.tokens) == ("a", spell("ab"), ["a", "b"])


def test_nothing_comes_after_a_stop() -> None:
    subject = decoder(stop=("b",))
    subject.process(spell("ab"))
    assert subject.process(spell("cd")) == DecodeResult("", [], None, HiddenStopSequenceDetected("b"))
    assert subject.finish().text == ""
    assert subject.num_generated == 2


def test_row_1_a_stop_string_split_over_tokens_does_not_leak() -> None:
    subject = decoder(stop=("stop",))
    texts = [subject.process([token_id]).text for token_id in spell("a stop")]
    assert (texts, subject.stop_trigger) == (["a", " ", "", "", "", ""], HiddenStopSequenceDetected("stop"))


def test_row_2_the_earliest_match_in_the_text_wins() -> None:
    assert run(decoder(stop=("am", "tr")), [spell("stream")])[0] == "s"


@pytest.mark.parametrize(("min_tokens", "num_kept"), [(0, 2), (1, 2), (2, 2), (3, 4), (4, 4)])
def test_row_3_the_token_that_reaches_min_tokens_may_stop(min_tokens: int, num_kept: int) -> None:
    for chunks in ([[*spell("a"), EOS, *spell("b"), EOS]], [spell("a"), [EOS], spell("b"), [EOS]]):
        subject = decoder(eos_token_ids={EOS}, min_tokens=min_tokens)
        assert run(subject, chunks)[1:] == (
            [*spell("a"), EOS, *spell("b"), EOS][:num_kept],
            EosTokenDetected(EOS),
        )


def test_row_4_a_stop_string_that_spans_the_floor_counts() -> None:
    text, ids, trigger = run(decoder(stop=("bcd",), min_tokens=4), [spell("abc"), spell("def")])
    assert (text, ids, trigger) == ("a", spell("abcd"), HiddenStopSequenceDetected("bcd"))


def test_row_4_a_stop_string_that_ends_below_the_floor_does_not_count() -> None:
    assert run(decoder(stop=("bc",), min_tokens=4), [spell("abcdef")])[0] == "abcdef"


def test_row_5_hidden_ids_show_no_text_below_the_floor() -> None:
    subject = decoder(eos_token_ids={EOS}, min_tokens=3, skip_special_tokens=False)
    assert subject.process([*spell("a"), EOS, *spell("b")]).text == "ab"


@pytest.mark.parametrize("sizes", [[1], [2], [5]])
def test_row_6_max_tokens_is_enforced(sizes: list[int]) -> None:
    text, ids, trigger = run(decoder(max_tokens=3), split(spell("abcde"), sizes))
    assert (text, ids, trigger) == ("abc", spell("abc"), MaxTokensLimit())


def test_row_6_a_stop_on_the_last_token_wins_over_max_tokens() -> None:
    assert decoder(max_tokens=1, eos_token_ids={EOS}).process([EOS]).stop_trigger == EosTokenDetected(EOS)


def test_row_7_stop_token_ids_are_honoured_hidden_or_visible_as_asked() -> None:
    [b] = spell("b")
    hidden = decoder(stop_token_ids={b}).process(spell("abc"))
    visible = decoder(stop_token_ids_visible={b}).process(spell("abc"))
    assert hidden == DecodeResult("a", spell("ab"), None, HiddenStopTokenDetected(b))
    assert visible == DecodeResult("ab", spell("ab"), None, VisibleStopTokenDetected(b))


def test_row_11_unfinished_bytes_are_flushed_before_withheld_text_is_decided() -> None:
    subject = decoder(stop=("a\ufffd!",))
    part = BYTE_LEVEL.encode("👩").ids[:1]
    assert subject.process([*spell("a"), *part]).text == ""
    assert subject.finish().text == "a\ufffd"


@pytest.mark.parametrize("token_id", [EOS, IM_END, TURN])
def test_row_13_a_stop_string_matches_the_special_token_that_is_skipped(token_id: int) -> None:
    stop = toy.SPECIAL[token_id]
    result = decoder(stop=("x", stop)).process([*spell("ab"), token_id, *spell("c")])
    assert result == DecodeResult("ab", [*spell("ab"), token_id], None, HiddenStopSequenceDetected(stop))


def test_row_13_a_stop_string_matches_the_special_token_that_is_shown() -> None:
    stop = toy.SPECIAL[IM_END]
    result = decoder(stop=(stop,), skip_special_tokens=False).process([*spell("ab"), IM_END])
    assert (result.text, result.stop_trigger) == ("ab", HiddenStopSequenceDetected(stop))


def test_row_13_the_text_of_a_special_token_written_out_matches_too() -> None:
    stop = toy.SPECIAL[IM_END]
    text, _, trigger = run(decoder(stop=(stop,)), [spell("ab" + stop + "c")])
    assert (text, trigger) == ("ab", HiddenStopSequenceDetected(stop))


def test_row_15_state_stays_small_on_invalid_bytes() -> None:
    subject = decoder(stop=("never",))
    bad = BYTE_LEVEL.token_to_id("Ģ")
    for _ in range(5000):
        assert len(subject.process([bad]).text) == 1
        assert subject.withheld == ""


def test_row_19_ignore_eos_keeps_every_stop_of_the_caller() -> None:
    conditions = {"ignore_eos": True, "eos_token_ids": {EOS}, "stop_token_ids_hidden": {TURN}}
    ids = [EOS, TURN, *spell("ab")]
    assert decoder(stop=("b",), **conditions).process(ids).stop_trigger == HiddenStopSequenceDetected("b")
    by_id = decoder(stop_token_ids=frozenset(spell("a")), **conditions).process(ids)
    assert by_id.stop_trigger == HiddenStopTokenDetected(spell("a")[0])


def test_a_visible_stop_string_is_shown_and_nothing_after_it() -> None:
    text, _, trigger = run(decoder(stop=("bc",), include_stop_str_in_output=True), [spell("ab"), spell("cd")])
    assert (text, trigger) == ("abc", VisibleStopSequenceDetected("bc"))


def test_a_system_stop_id_ends_with_end_of_sequence() -> None:
    assert decoder(stop_token_ids_hidden={TURN}).process([TURN]).stop_trigger == EosTokenDetected(TURN)


def test_the_end_of_the_stream_decides_an_undecided_match() -> None:
    subject = decoder(stop=("abcd", "bc"))
    assert subject.process(spell("abc")).stop_trigger is None
    assert subject.finish() == DecodeResult("a", [], None, HiddenStopSequenceDetected("bc"))


def test_a_complete_but_undecided_match_wins_over_the_token_that_ends_the_choice() -> None:
    subject = decoder(stop=("abcd", "bc"), eos_token_ids={EOS})
    result = subject.process([*spell("abc"), EOS])
    assert (result.text, result.stop_trigger) == ("a", HiddenStopSequenceDetected("bc"))


def test_an_id_that_was_seen_under_equal_conditions_is_only_looked_up() -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    conditions = StopConditions(stop=("xy",), eos_token_ids=frozenset({EOS}))
    [a] = spell("a")
    first, second, other = (
        Decoder(vocabulary, each) for each in (conditions, conditions, StopConditions(stop=("xyz",)))
    )
    assert first.take_known(0, a) is None
    assert first.process([a]).text == "a"
    assert second.take_known(0, a) == "a"
    assert second.token_ids == [a]
    assert other.take_known(0, a) is None


def test_an_id_is_not_known_where_it_could_mean_more_than_its_text() -> None:
    a, x, y = spell("axy")
    part = BYTE_LEVEL.encode("👩").ids[0]
    ids = [a, x, y, part, EOS]

    def fresh(before: list[int], **conditions: object) -> Decoder:
        subject = decoder(stop=("xy",), eos_token_ids={EOS}, **conditions)
        for token_id in before:
            subject.process([token_id])
        return subject

    for token_id in ids:
        fresh([token_id])
    for before in ([], [a], [x], [part], [x, y], [EOS]):
        place = len(before)
        known = [token_id for token_id in ids if fresh(before).take_known(place, token_id) is not None]
        assert known == ([a, y] if before in ([], [a]) else [])
    assert fresh([], max_tokens=1).take_known(0, a) is None
    assert fresh([], max_tokens=2).take_known(0, a) == "a"
    assert fresh([], with_tokens=True).take_known(0, a) is None


def test_a_special_token_that_was_shown_to_one_is_no_text_to_another_who_skips_it() -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    showing, skipping = (
        Decoder(vocabulary, StopConditions(), skip_special_tokens=skip) for skip in (False, True)
    )
    assert showing.process([TURN]).text == toy.SPECIAL[TURN]
    assert run_looking_up(skipping, [TURN])[0] == ""


def test_nothing_is_known_behind_a_stop_within_a_token() -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    ids = range(len(toy.SPECIAL), vocabulary.size)
    token_id = next(i for i in ids if len(set(vocabulary.token_text(i)) - {"a"}) == 3)
    text = vocabulary.token_text(token_id)
    [a] = spell("a")
    for _ in range(2):
        subject = Decoder(vocabulary, StopConditions(stop=(text[1:],)))
        assert subject.process([a]).text == "a"
    assert subject.process([token_id]).text == text[0]
    assert subject.take_known(2, a) is None


def test_a_known_id_is_taken_at_its_position_only() -> None:
    vocabulary = Vocabulary(BYTE_LEVEL)
    for _ in range(2):
        subject = Decoder(vocabulary, StopConditions())
        subject.process(spell("a"))
    subject.process(spell("a"))
    assert [subject.take_known(place, spell("a")[0]) for place in (1, 3, 2)] == [None, None, "a"]


def test_a_stop_string_below_the_floor_teaches_nothing() -> None:
    texts = {i: VOCABULARY.token_text(i) for i in range(len(toy.SPECIAL), VOCABULARY.size)}
    # The stop string is complete and over within one token.
    token_id, text = next(
        (i, t) for i, t in texts.items() if len(t) > 1 and t.isalpha() and t[0] not in t[1:]
    )
    for _ in range(2):
        found = run_looking_up(decoder(stop=(text[0],), min_tokens=3), [token_id] * 4)
        assert found == (text * 2, [token_id] * 3, HiddenStopSequenceDetected(text[0]))


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginewire.backend.decoding.decoder.MAX_KNOWN_IDS", 2)
    vocabulary = Vocabulary(BYTE_LEVEL)
    assert run_looking_up(Decoder(vocabulary, StopConditions()), spell("abcdabcd"))[0] == "abcdabcd"
    known = [Decoder(vocabulary, StopConditions()).take_known(0, token_id) for token_id in spell("abcd")]
    assert known == ["a", "b", None, None]


def test_no_ids_change_nothing() -> None:
    subject = decoder(max_tokens=1)
    assert subject.process([]) == DecodeResult("", [], None, None)
    assert not subject.is_finished

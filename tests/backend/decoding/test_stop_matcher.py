import itertools

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.decoding.stop_matcher import StopMatcher

TEXT = st.text(alphabet="abc", max_size=24)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=5)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted({place for place in places if place < len(text)}), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(edges)]


def offline(text: str, stops: list[str], floor: int = 0) -> tuple[int, str] | None:
    """Of all matches that end beyond `floor`: the earliest, of those the longest."""
    found = [
        (begin, -len(stop), stop)
        for stop in stops
        for begin in range(len(text))
        if text.startswith(stop, begin) and begin + len(stop) > floor
    ]
    return (min(found)[0], min(found)[2]) if found else None


def run(matcher: StopMatcher, pieces: list[str]) -> list[str]:
    released = []
    for piece in pieces:
        released.append(matcher.feed(piece))
        if matcher.match is not None:
            return released
    return [*released, matcher.finish()]


@given(TEXT, STOPS, st.lists(st.integers(0, 24)), st.booleans())
def test_any_chunking_gives_what_a_search_of_the_whole_text_gives(
    text: str, stops: list[str], places: list[int], visible: bool
) -> None:
    matcher = StopMatcher(stops, visible=visible)
    released = "".join(run(matcher, cut(text, places)))
    expected = offline(text, stops)
    if expected is None:
        assert (released, matcher.match) == (text, None)
        return
    begin, stop = expected
    assert matcher.match is not None
    assert matcher.match.stop == stop
    assert released == text[: begin + (len(stop) if visible else 0)]


@given(TEXT, STOPS, st.integers(0, 24))
def test_a_match_counts_when_it_ends_after_the_matcher_was_armed(
    text: str, stops: list[str], floor: int
) -> None:
    matcher = StopMatcher(stops)
    matcher.armed = False
    released = "".join(matcher.feed(character) for character in text[:floor])
    matcher.armed = True
    released += "".join(run(matcher, list(text[floor:])))
    expected = offline(text, stops, floor)
    assert (matcher.match and matcher.match.stop) == (expected and expected[1])
    assert released == text[: expected[0] if expected else None]


@given(TEXT, STOPS)
def test_exactly_the_longest_suffix_that_could_become_a_stop_is_withheld(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    for place in range(1, len(text) + 1):
        seen = text[:place]
        matcher.feed(text[place - 1])
        if matcher.match is not None or any(stop in seen for stop in stops):
            return
        proper = {stop[:length] for stop in stops for length in range(1, len(stop))}
        longest = max((prefix for prefix in proper if seen.endswith(prefix)), key=len, default="")
        assert matcher.withheld == longest


@given(TEXT, STOPS, st.lists(st.integers(0, 24)))
def test_the_deciding_character_does_not_depend_on_the_chunking(
    text: str, stops: list[str], places: list[int]
) -> None:
    def decided(pieces: list[str]) -> int | None:
        matcher = StopMatcher(stops)
        before = 0
        for piece in pieces:
            matcher.feed(piece)
            if matcher.match is not None:
                return before + matcher.match.decided_at
            before += len(piece)
        return None

    assert decided(cut(text, places)) == decided(list(text))


def test_a_stop_split_over_pieces_never_leaks() -> None:
    matcher = StopMatcher(["<stop>"])
    assert [matcher.feed(piece) for piece in ("ab<s", "to", "p", ">cd")] == ["ab", "", "", ""]
    assert matcher.match is not None


def test_withheld_text_is_released_the_moment_it_cannot_become_a_stop() -> None:
    matcher = StopMatcher(["abcd"])
    assert [matcher.feed(piece) for piece in ("ab", "c", "x")] == ["", "", "abcx"]


def test_withheld_text_shrinks_to_the_next_shorter_candidate() -> None:
    matcher = StopMatcher(["aab"])
    assert [matcher.feed("a") for _ in range(4)] == ["", "", "a", "a"]
    assert matcher.withheld == "aa"


def test_the_earliest_match_in_the_text_wins_over_list_order() -> None:
    matcher = StopMatcher(["am", "tr"])
    assert matcher.feed("stream") == "s"
    assert matcher.match is not None
    assert matcher.match.stop == "tr"


@pytest.mark.parametrize(("rest", "stop"), [("d", "abcd"), ("x", "bc"), ("", "bc")])
def test_an_earlier_candidate_is_waited_for(rest: str, stop: str) -> None:
    matcher = StopMatcher(["abcd", "bc"])
    released = matcher.feed("abc")
    assert (released, matcher.match) == ("", None)
    released += matcher.feed(rest) + matcher.finish()
    assert matcher.match is not None
    assert (matcher.match.stop, released) == (stop, "" if stop == "abcd" else "a")


@pytest.mark.parametrize(("rest", "stop"), [("c", "abc"), ("x", "ab"), ("", "ab")])
def test_of_two_matches_with_the_same_beginning_the_longest_wins(rest: str, stop: str) -> None:
    matcher = StopMatcher(["ab", "abc"])
    matcher.feed("ab")
    matcher.feed(rest)
    matcher.finish()
    assert matcher.match is not None
    assert matcher.match.stop == stop


def test_a_visible_stop_is_shown_without_delay() -> None:
    matcher = StopMatcher(["abc"], visible=True)
    assert [matcher.feed(piece) for piece in ("xab", "cyy")] == ["xab", "c"]


def test_nothing_is_shown_after_the_match() -> None:
    StopMatcher(["b"]).feed("c")  # a move that is remembered from here on
    matcher = StopMatcher(["b"])
    assert [matcher.feed(piece) for piece in ("ab", "c")] == ["a", ""]
    assert matcher.finish() == ""


def test_remembered_moves_give_the_same_result_the_second_time() -> None:
    stops = ["<stop>", "top"]
    runs = []
    for _ in range(2):
        matcher = StopMatcher(stops)
        runs.append(run(matcher, ["plain ", "<s", "tray ", "<st", "o", "p>"]))
    assert runs[0] == runs[1]


def test_remembered_moves_are_not_taken_while_a_match_is_undecided() -> None:
    stops = ["ab", "abc"]
    unarmed = StopMatcher(stops)
    unarmed.armed = False
    assert [unarmed.feed("ab"), unarmed.feed("x")] == ["", "abx"]
    matcher = StopMatcher(stops)
    assert [matcher.feed("ab"), matcher.feed("x")] == ["", ""]
    assert matcher.match is not None
    assert matcher.match.stop == "ab"


def test_a_thousand_stops_find_the_right_one() -> None:
    matcher = StopMatcher([f"<{number:04d}>" for number in range(1000)])
    assert matcher.feed("a <0x> b <0789> c") == "a <0x> b "
    assert matcher.match is not None
    assert matcher.match.stop == "<0789>"

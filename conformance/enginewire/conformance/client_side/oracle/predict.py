"""What is due of each choice of a case: its text, its end, how many tokens. Pure.

From the first token on, everything is computed anew for each further token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from enginewire.conformance.client_side.oracle.case import Case
from enginewire.conformance.client_side.oracle.text import NotTold, Text, decode
from enginewire.conformance.client_side.stage import alphabet

FAILED: Final = ("ERROR", "CANCELLED", "CONTENT_FILTER")
"""Ends of the engine that no stop overrules."""

PROMPT: Final = tuple(b"prompt")
"""How the prompts of the kit begin, as far as texts behind them depend on it."""


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string in the text, from `begin` to before `end`, complete with that token."""

    begin: int
    end: int
    stop: str
    count: int


@dataclass(frozen=True, slots=True)
class Due:
    """How a choice ends. Where the contract leaves something open, everything between two values is right."""

    reason: str
    text: str
    least_text: str
    """All of `text`, but for a choice that failed."""
    count: int
    """Tokens at most, and at least `least_count`: those of a match, and those that decided that it is one."""
    least_count: int
    message: int
    """The output of the engine that ends it."""
    stop: str = ""
    stop_token: int | None = None
    needs_engine: bool = False
    """It ends by what the engine says, and not before."""
    shown: tuple[str, ...] = ()
    """By number of tokens, what has to be shown with them."""


@lru_cache(maxsize=1024)
def predict(case: Case) -> tuple[Due, ...]:
    """Of every choice. Raises NotTold for a case that no engine may play, or of which nobody says the end."""
    return tuple(_Choice(case, index).due() for index in range(case.n))


def outputs(case: Case) -> list[tuple[int, int, bool]]:
    """What the engine sends: the choice, how many tokens, whether that is the end of it."""
    found, left = [], [len(tokens) for tokens in case.tokens]
    for index, count in case.messages:
        left[index] -= count
        found.append((index, count, not left[index] and index not in case.apart))
    return [*found, *((index, 0, True) for index in case.apart)]


class _Choice:
    def __init__(self, case: Case, index: int) -> None:
        self.case, self.index = case, index
        self.tokens, self.end = case.tokens[index], case.ends[index]
        self.system = set() if case.ignore_eos else {alphabet.EOS, *case.stop_token_ids_hidden}
        self.hidden = self.system | set(case.stop_token_ids)
        self.ending = self.hidden | set(case.stop_token_ids_visible)
        self.shown: list[str] = []
        self.best: Match | None = None
        self.needs_engine = False
        self.by_id = bool(self.tokens) and self.end in ("EOS", "STOP") and self.tokens[-1] in self.ending

    def due(self) -> Due:
        """See `predict`."""
        self._check()
        text, before = Text(""), 0
        for count, token in enumerate(self.tokens, 1):
            text = self.text(count)
            if self.is_stop(count, token):
                return self._at_special(text, count)
            self.look(text.shown, before, count)
            if self.best and not self.is_open(text.shown):
                return self._at_match(text.shown, self.best, count)
            before = len(text.shown)
            self.shown.append(text.shown[: before - self.held(text.shown)])
            if count == self.case.max_tokens:
                return self._at_end(text, count)
        return self._at_end(text, len(self.tokens))

    def text(self, count: int) -> Text:
        """What the first tokens add to the complete characters of the prompt."""
        prompt = self.visible((*PROMPT, *self.case.prompt), is_output=False)
        output = self.visible(self.tokens[:count])
        begun = decode(prompt, spaced=self.case.spaced)
        whole = decode([*prompt, *output], spaced=self.case.spaced)
        if not whole.shown.startswith(begun.shown):
            raise NotTold("the prompt has another text now")
        return Text(whole.shown[len(begun.shown) :], whole.rest)

    def visible(self, tokens: Sequence[int], *, is_output: bool = True) -> list[int]:
        """Those that have a text."""
        left_out = set(alphabet.SPECIAL) if self.case.skips else set()
        left_out |= self.hidden if is_output else set()
        return [token for token in tokens if token not in left_out]

    def is_stop(self, count: int, token: int) -> bool:
        """A skipped special token that is a stop string."""
        is_skipped = token in alphabet.SPECIAL and self.case.skips and token not in self.hidden
        return is_skipped and count >= self.case.min_tokens and alphabet.SPECIAL[token] in self.case.stop

    def look(self, text: str, before: int, count: int) -> None:
        """Take the matches that end beyond the first `before` characters, if they count."""
        if count < self.case.min_tokens:
            return
        for stop in self.case.stop:
            for end in range(before + 1, len(text) + 1):
                if text[:end].endswith(stop):
                    self.take(Match(end - len(stop), end, stop, count))

    def take(self, match: Match) -> None:
        """The one that begins first wins, then the longest."""
        if not self.best or (match.begin, -match.end) < (self.best.begin, -self.best.end):
            self.best = match

    def is_open(self, text: str) -> bool:
        """A longer one may still win, or one that began before."""
        assert self.best is not None
        return any(_may_go_on(text[begin:], self.case.stop) for begin in range(self.best.begin + 1))

    def held(self, text: str) -> int:
        """How many characters wait."""
        ends = (text[begin:] for begin in range(len(text)))
        return max((len(end) for end in ends if _may_go_on(end, self.case.stop)), default=0)

    def _at_special(self, text: Text, count: int) -> Due:
        if self.end in FAILED and self.message_of(count) == self.last_message:
            raise NotTold("what is shown of a skipped token beside a failure")
        whole = self.flushed(text, count)
        if self.best:
            return self._at_match(whole, self.best, count)
        stop = alphabet.SPECIAL[self.tokens[count - 1]]
        shown = whole + (stop if self.case.include_stop_str_in_output else "")
        return self._due("STOP", shown, shown, count, count, stop=stop)

    def _at_match(self, text: str, match: Match, count: int) -> Due:
        shown = text[: match.end if self.case.include_stop_str_in_output else match.begin]
        if self.end in FAILED and self.message_of(count) == self.last_message:
            if self.message_of(match.count) != self.last_message:
                raise NotTold("a match is decided by the output of a failure")
            whole = self.text(len(self.tokens))
            before = self.tokens_before(self.last_message)
            least = self.shown[before - 1] if before else ""
            self.needs_engine = True
            return self._due(self.end, _whole(whole), least, len(self.tokens), match.count)
        return self._due("STOP", shown, shown, count, match.count, stop=match.stop)

    def _at_end(self, text: Text, count: int) -> Due:
        if self.end in FAILED:
            self.needs_engine = True
            if self.best:
                raise NotTold("a failure comes before it is decided what matched")
            least = self.shown[-1] if self.shown else ""
            return self._due(self.end, _whole(text), least, count, count)
        whole = self.flushed(text, count)
        self.needs_engine = self.by_id or count < self.case.max_tokens
        if self.best:
            return self._at_match(whole, self.best, count)
        token = self.tokens[-1] if self.end == "STOP" else None
        return self._due(self.end, whole, whole, count, count, stop_token=token)

    def flushed(self, text: Text, count: int) -> str:
        """The text when nothing comes any more; a stop string may be complete with it."""
        whole = _whole(text)
        self.look(whole, len(text.shown), count)
        return whole

    def _due(
        self,
        reason: str,
        text: str,
        least_text: str,
        count: int,
        least_count: int,
        *,
        stop: str = "",
        stop_token: int | None = None,
    ) -> Due:
        return Due(
            reason,
            text,
            least_text,
            count,
            least_count,
            self.last_message if self.needs_engine or not count else self.message_of(count),
            stop,
            stop_token,
            self.needs_engine,
            tuple(self.shown),
        )

    @property
    def last_message(self) -> int:
        return max(place for place, (index, _, _) in enumerate(outputs(self.case)) if index == self.index)

    def message_of(self, count: int) -> int:
        """The output with that token."""
        return next(place for place, until in self._counted() if until >= count)

    def tokens_before(self, message: int) -> int:
        """Tokens of the choice before an output."""
        return max((until for place, until in self._counted() if place < message), default=0)

    def _counted(self) -> Iterator[tuple[int, int]]:
        count = 0
        for place, (index, size, _) in enumerate(outputs(self.case)):
            count += size if index == self.index else 0
            if index == self.index:
                yield place, count

    def _check(self) -> None:
        """Raise NotTold for what an engine may not generate."""
        case, last = self.case, self.tokens[-1] if self.tokens else -1
        places = [place for place, token in enumerate(self.tokens, 1) if token in self.ending]
        armed = [place for place in places if place >= case.min_tokens]
        by_id = bool(armed)
        due = "EOS" if last in self.system else "STOP"
        size, longest = len(self.tokens), case.max_tokens
        checks = (
            (not armed or (armed == [size] and self.end == due), "a stop id ends its choice"),
            (self.end != "STOP" or by_id, "only a stop id is a STOP of the engine"),
            (size or self.end in ("EOS", "CANCELLED"), "no tokens"),
            (self.end == "LENGTH" or by_id or size < longest, "max_tokens ends it first"),
            (size <= longest or self.end == "LENGTH", "nothing else ends beyond max_tokens"),
            (not by_id or size <= longest, "max_tokens ends it first"),
            (not (by_id and self.index in case.apart), "one of two ends"),
            (not set(case.stop_token_ids_visible) & {*alphabet.SPECIAL, *self.hidden}, "hidden or visible"),
        )
        for holds, why in checks:
            if not holds:
                raise NotTold(why)
        for place, token in enumerate(self.tokens):
            if token in self.hidden and place + 1 < size and self.text(place).rest != "":
                raise NotTold("a hidden token inside of a character")


def _whole(text: Text) -> str:
    if text.rest is None:
        raise NotTold("what is left is one U+FFFD, or one per byte")
    return text.shown + text.rest


def _may_go_on(end: str, stops: Sequence[str]) -> bool:
    """A text with this end may still become a longer stop string."""
    return bool(end) and any(len(stop) > len(end) and stop.startswith(end) for stop in stops)

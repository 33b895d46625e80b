"""The Decoder: token ids of one choice in, text and the reason to stop out.

Sans-IO. Holds the order in which stop conditions are looked at; the text comes from a detokenizer,
the stop strings from a matcher. Knows nothing about engines, streams or messages.

The rule for each token, in this order:
1. It counts. Stop conditions apply once `num_generated >= min_tokens`: the token that reaches the
   floor may stop. A stop string counts when it ENDS in such a token, wherever it began.
2. A hidden id (end of sequence, system or caller) shows no text, below the floor neither; it stops.
3. A skipped special token whose text is one of the stop strings stops. Under include_stop_str_in_output
   its text is shown.
4. Its text passes the matcher, which withholds what could still become a stop string.
5. A visible id stops after its text.
6. max_tokens stops.
At any end, bytes that wait for the rest of a character become U+FFFD, then withheld text is decided:
a stop string found there wins, because it ended before the token that brought the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire.backend.decoding.detokenizer import Detokenizer
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
from enginewire.backend.decoding.stop_matcher import StopMatcher
from enginewire.backend.decoding.vocabulary import Vocabulary

NO_LIMIT: Final = 1 << 62
# Ids whose text is remembered for one set of conditions: the frequent ones of a vocabulary, and a bound.
MAX_KNOWN_IDS: Final = 16_384
NOTHING_KNOWN: Final[Mapping[int, str]] = {}


@dataclass(slots=True)
class DecodeResult:
    """What one call made of its token ids.

    `token_ids` are the ids that count, up to and including the one that stopped: logprobs rows beyond
    them are to be cut. `tokens` has the own text of each of them, when asked for. `text` may belong
    to earlier ids, and may lack text that is withheld.
    """

    text: str
    token_ids: Sequence[int]
    tokens: list[str] | None = None
    stop_trigger: StopTrigger | None = None


class Decoder:
    """One choice of one request. Not shared between threads."""

    __slots__ = (
        "_detokenizer",
        "_hidden",
        "_include_stop",
        "_known",
        "_known_at_rest",
        "_last_plain",
        "_matcher",
        "_max_tokens",
        "_min_tokens",
        "_token_text",
        "_visible",
        "_watched",
        "is_finished",
        "stop_trigger",
        "token_ids",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        conditions: StopConditions,
        *,
        skip_special_tokens: bool = True,
        with_tokens: bool = False,
        vocab_size: int | None = None,
        stream: Detokenizer | None = None,
    ) -> None:
        """`with_tokens`: fill DecodeResult.tokens. No id from `vocab_size` on may come.

        The text goes on from `stream`, which skips special tokens or not and becomes the decoder's own;
        None: it begins.
        """
        # After a stop or `finish`: further ids are dropped.
        self.is_finished = False
        # All that count.
        self.token_ids: list[int] = []
        self.stop_trigger: StopTrigger | None = None
        self._include_stop = conditions.include_stop_str_in_output
        self._detokenizer = stream or vocabulary.detokenizer(skip_special_tokens=skip_special_tokens)
        self._max_tokens = conditions.max_tokens or NO_LIMIT
        self._min_tokens = conditions.min_tokens
        self._token_text = vocabulary.token_text if with_tokens else None
        # What `take_one` cannot give is never asked of it.
        self._last_plain = 0 if with_tokens else self._max_tokens - 1
        self._matcher: StopMatcher | None = None
        if conditions.stop:
            self._matcher = StopMatcher(conditions.stop, visible=conditions.include_stop_str_in_output)
        self._visible = conditions.stop_token_ids_visible
        self._hidden = hidden_triggers(
            conditions,
            self._matcher.stops if self._matcher else frozenset(),
            vocabulary.special_ids if skip_special_tokens else {},
        )
        self._watched = frozenset(self._visible | self._hidden.keys())
        automaton = self._matcher.automaton if self._matcher else None
        self._known_at_rest = vocabulary.known_texts(
            skip_special_tokens, automaton, self._watched, vocab_size
        )
        # Ids that would show just this text if they came now, and change nothing else. Not all of them.
        self._known: Mapping[int, str] = self._known_at_rest if self._is_at_rest else NOTHING_KNOWN

    @property
    def num_generated(self) -> int:
        """How many ids count."""
        return len(self.token_ids)

    @property
    def withheld(self) -> str:
        """Text that may still become a hidden stop string."""
        return self._matcher.withheld if self._matcher else ""

    def take_known(self, position: int, token_id: int) -> str | None:
        """`take_one` for an id that is only looked up, as most are; `position` are the ids before it.

        None, and nothing taken, for any other id and at any other position.
        """
        text = self._known.get(token_id)
        if text is not None and len(self.token_ids) == position < self._last_plain:
            self.token_ids.append(token_id)
            return text
        return None

    def take_one(self, token_id: int) -> str | None:
        """`process` for a single plain id, the common case of a decode step: only its text.

        None, and nothing taken, for an id that is not plain, and where `tokens` are asked for. Raises
        DecodeError.
        """
        if len(self.token_ids) >= self._last_plain or token_id in self._watched or self.is_finished:
            return None
        text = self._known.get(token_id)
        if text is None:
            text = self._find_out(token_id)
        self.token_ids.append(token_id)
        return text

    def _find_out(self, token_id: int) -> str:
        """The text of a plain id, remembered if it is all there is to know."""
        was_at_rest = self._known is self._known_at_rest
        text = piece = self._detokenizer.step(token_id)
        matcher = self._matcher
        if matcher is not None:
            matcher.armed = len(self.token_ids) + 1 >= self._min_tokens
            text = matcher.feed(piece)
            if matcher.match is not None:
                self._stop_at_match()
        # Where nothing shows, something is held, most of the time.
        is_at_rest = text != "" and self._is_at_rest
        self._known = self._known_at_rest if is_at_rest else NOTHING_KNOWN
        may_learn = was_at_rest and is_at_rest and len(self._known_at_rest) < MAX_KNOWN_IDS
        if may_learn and (matcher is None or matcher.stays_at_rest(piece)):
            self._known_at_rest[token_id] = piece
        return text

    @property
    def _is_at_rest(self) -> bool:
        return self._detokenizer.is_at_rest and (self._matcher is None or self._matcher.is_at_rest)

    def process(self, token_ids: Sequence[int]) -> DecodeResult:
        """Take the next ids of the choice; after the end: nothing. Raises DecodeError."""
        if len(token_ids) == 1 and (text := self.take_one(token_ids[0])) is not None:
            return self.result(text, token_ids)
        if self.is_finished:
            return DecodeResult("", [], self._tokens([]), self.stop_trigger)
        if self._is_plain(token_ids):
            text, num_kept = self._take(token_ids)
        else:
            text, num_kept = self._walk(token_ids)
        kept = token_ids if num_kept == len(token_ids) else token_ids[:num_kept]
        return DecodeResult(text, kept, self._tokens(kept), self.stop_trigger)

    def result(self, text: str, token_ids: Sequence[int]) -> DecodeResult:
        """What `take_one` gave, whole."""
        return DecodeResult(text, token_ids, None, self.stop_trigger)

    def finish(self) -> DecodeResult:
        """No further ids will come: flush what is held. Withheld text may turn out to be a stop."""
        text = "" if self.is_finished else self._end(None)
        return DecodeResult(text, [], self._tokens([]), self.stop_trigger)

    def rest(self) -> None:
        """Ids do not come one by one for now: `take_known` takes none before others were processed."""
        self._known = NOTHING_KNOWN

    def close(self) -> None:
        """No further ids will come, and nobody wants what is held."""
        self.is_finished = True
        self._known = NOTHING_KNOWN

    def _tokens(self, token_ids: Sequence[int]) -> list[str] | None:
        return None if self._token_text is None else [self._token_text(token_id) for token_id in token_ids]

    def _is_plain(self, token_ids: Sequence[int]) -> bool:
        """No id of these can stop by itself, and all are on the same side of the floor."""
        before = len(self.token_ids)
        after = before + len(token_ids)
        return (
            after < self._max_tokens
            and (before + 1 >= self._min_tokens or after < self._min_tokens)
            and self._watched.isdisjoint(token_ids)
        )

    def _take(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Plain ids at once: their text, and how many count."""
        pieces = self._detokenizer.feed(token_ids)
        text = "".join(pieces)
        num_kept = len(pieces)
        if self._matcher is not None:
            self._matcher.armed = len(self.token_ids) + num_kept >= self._min_tokens
            text = self._matcher.feed(text)
            if self._matcher.match is not None:
                num_kept = count_until(pieces, self._matcher.match.decided_at)
                self._stop_at_match()
        self.token_ids += token_ids if num_kept == len(token_ids) else token_ids[:num_kept]
        # Whoever asks for single ids again finds out.
        self._known = NOTHING_KNOWN
        return text, num_kept

    def _walk(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """Ids one by one: their text, and how many count."""
        texts = []
        for num_kept, token_id in enumerate(token_ids, 1):
            texts.append(self._step(token_id))
            if self.is_finished:
                return "".join(texts), num_kept
        return "".join(texts), len(token_ids)

    def _step(self, token_id: int) -> str:
        armed = self.num_generated + 1 >= self._min_tokens
        if (trigger := self._hidden.get(token_id)) is not None:
            self.token_ids.append(token_id)
            return self._end(trigger) if armed else ""
        text, _ = self._take([token_id])
        if self.is_finished:
            return text
        if armed and token_id in self._visible:
            return text + self._end(VisibleStopTokenDetected(token_id))
        if self.num_generated >= self._max_tokens:
            return text + self._end(MaxTokensLimit())
        return text

    def _end(self, trigger: StopTrigger | None) -> str:
        """Flush; a stop string that was complete already wins over `trigger`."""
        self.close()
        self.stop_trigger = trigger
        text = self._detokenizer.flush()
        if self._matcher is None:
            return text
        self._matcher.armed = self.num_generated >= self._min_tokens
        text = self._matcher.feed(text) + self._matcher.finish()
        if self._matcher.match is not None:
            self._stop_at_match()
        elif isinstance(trigger, VisibleStopSequenceDetected):
            # A skipped special token: it has no text but as a stop string.
            text += trigger.stop
        return text

    def _stop_at_match(self) -> None:
        assert self._matcher is not None
        assert self._matcher.match is not None
        self.close()
        self.stop_trigger = sequence_trigger(self._matcher.match.stop, self._include_stop)


def hidden_triggers(
    conditions: StopConditions, stops: frozenset[str], skipped: Mapping[str, int]
) -> dict[int, StopTrigger]:
    """What each id means whose text is never shown: the system's before the caller's before strings.

    `stops` are the stop strings, `skipped` maps the text of each skipped special token to its id.
    """
    triggers: dict[int, StopTrigger] = {}
    # Callers may have a thousand stop strings; a vocabulary has few special tokens.
    for text, token_id in skipped.items():
        if text in stops:
            triggers[token_id] = sequence_trigger(text, conditions.include_stop_str_in_output)
    triggers |= {token_id: HiddenStopTokenDetected(token_id) for token_id in conditions.stop_token_ids}
    triggers |= {token_id: EosTokenDetected(token_id) for token_id in conditions.system_token_ids}
    return triggers


def sequence_trigger(stop: str, visible: bool) -> StopTrigger:
    """The trigger of a stop string."""
    return VisibleStopSequenceDetected(stop) if visible else HiddenStopSequenceDetected(stop)


def count_until(pieces: list[str], num_characters: int) -> int:
    """How many pieces, from the first, hold the first `num_characters` characters."""
    for count, piece in enumerate(pieces, 1):
        num_characters -= len(piece)
        if num_characters <= 0:
            return count
    return len(pieces)

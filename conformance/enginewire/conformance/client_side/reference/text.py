"""The text side of the reference backend: token ids of one choice to text, up to its end.

Plain and slow on purpose, in small methods that a mutant can override. Knows nothing about RPCs.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from enginewire import v1 as pb
from enginewire.byte_level import BYTE_OF_CHARACTER
from enginewire.conformance.client_side.stage.alphabet import SPACE

FINAL = (pb.FINISH_REASON_ERROR, pb.FINISH_REASON_CANCELLED, pb.FINISH_REASON_CONTENT_FILTER)
"""Reasons of the engine that no stop overrules."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a `tokenizer.json` of the kit says: the bytes of each id, and which are special."""

    bytes_of: Mapping[int, bytes]
    special: Mapping[int, str]
    strips_first_space: bool = False
    """Of a text, which an answer is only a part of."""

    @classmethod
    def parse(cls, content: bytes) -> Vocabulary:
        """Of the file's content."""
        described = json.loads(content)
        is_spaced = described["model"].get("byte_fallback", False)
        spelled = _spaced_bytes if is_spaced else _byte_level_bytes
        words = described["model"]["vocab"].items()
        special = {token["id"]: token["content"] for token in described["added_tokens"]}
        return cls({token: spelled(text) for text, token in words}, special, is_spaced)


def _byte_level_bytes(text: str) -> bytes:
    return bytes(BYTE_OF_CHARACTER[character] for character in text)


def _spaced_bytes(text: str) -> bytes:
    is_byte = text.startswith("<0x")
    return bytes.fromhex(text[3:-1]) if is_byte else text.replace(SPACE, " ").encode()


@dataclass(frozen=True, slots=True)
class Match:
    """A stop string in the text, from `begin` to before `end`."""

    begin: int
    end: int
    stop: str


@dataclass
class ReferenceChoice:
    """One choice: what was received, and what the caller may see of it."""

    index: int
    vocabulary: Vocabulary
    request: pb.PreprocessedRequest
    eos_token_ids: frozenset[int]
    engine_evaluates: bool = False
    """The engine was given the stop strings: its text is shown, if it sends any."""
    token_ids: list[int] = field(default_factory=list)
    log_prob: float = 0.0
    """The sum of those of `token_ids`, as far as the engine has told them."""
    text: str = ""
    shown: int = 0
    finish: int = 0
    pending: Match | None = None
    """A stop string that is complete, while a longer one or one that began before still may be."""
    match: Match | None = None
    stop_token: int | None = None
    received: int = 0
    is_over: bool = False
    """The engine sent its terminal."""
    is_engine_text: bool = False

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = self.request.stop_conditions
        self.begin()
        self.go_on()

    def begin(self) -> None:
        """Go on behind the prompt: it has its complete characters, the answer what is left."""
        for token in self.request.token_ids:
            self.decode(self.vocabulary.bytes_of.get(token, b""))

    def go_on(self) -> None:
        """Behind what the caller got from another backend."""
        for resumed in self.request.resume.choices:
            if resumed.index == self.index:
                self.log_prob = resumed.cum_log_probs
                self.take_again(resumed.generated_token_ids)
                self.finish = self.finish or (pb.FINISH_REASON_STOP if resumed.finished else 0)
        self.received = len(self.token_ids)

    def take_again(self, token_ids: Sequence[int]) -> None:
        """Tokens that the caller has, with the text that could be shown."""
        for token in token_ids:
            self.take_token(token)
        self.show()

    def take(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        """The next output of the engine as the caller gets it."""
        if not self.token_ids and self.engine_evaluates and output.HasField("text"):
            self.is_engine_text = True
        if self.is_engine_text:
            return self.pass_on(output)
        before = len(self.token_ids)
        for token in output.token_ids:
            if not self.finish:
                self.take_token(token)
        self.take_finish(output)
        kept = self.token_ids[before:]
        answer = pb.BackendOutput(
            index=self.index, first_output_position=before, token_ids=kept, text=self.show()
        )
        answer.tokens.extend(self.texts(kept))
        if output.HasField("logprobs"):
            answer.logprobs.CopyFrom(self.rows(output.logprobs, len(kept)))
            answer.cum_log_probs = self.sum_so_far(output)
        self.describe_finish(answer, output)
        return answer

    def pass_on(self, output: pb.LLMEngineOutput) -> pb.BackendOutput:
        """Text and end of an engine that makes them itself."""
        answer = pb.BackendOutput(
            index=self.index,
            first_output_position=len(self.token_ids),
            token_ids=output.token_ids,
            text=output.text,
            finish_reason=output.finish_reason,
        )
        self.token_ids += output.token_ids
        self.finish = output.finish_reason
        if output.HasField("stop_match"):
            answer.stop_reason.CopyFrom(output.stop_match)
        return answer

    def take_token(self, token: int) -> None:
        """One more token: text, stop strings, limits."""
        before = len(self.text)
        self.token_ids.append(token)
        if self.is_special_stop(token):
            self.stop_at_special(self.vocabulary.special[token])
            return
        self.text += self.decode(self.bytes_of(token))
        self.look(before)
        if self.pending and not self.is_open(self.pending):
            self.match, self.finish = self.pending, pb.FINISH_REASON_STOP
        elif self.is_full():
            self.end(pb.FINISH_REASON_LENGTH)

    def look(self, before: int) -> None:
        """Note a stop string that ends beyond the first `before` characters."""
        found = [self.pending, self.find(before) if self.is_armed() else None]
        self.pending = self.best([match for match in found if match])

    def is_open(self, match: Match) -> bool:
        """What comes may still make another match the right one."""
        return len(self.text) - self.longest_open() <= match.begin

    def end(self, reason: int) -> None:
        """Nothing more comes: whatever is undecided is decided."""
        before = len(self.text)
        self.text += self.flush()
        self.look(before)
        self.match = self.pending
        self.finish = pb.FINISH_REASON_STOP if self.match else reason

    def stop_at_special(self, stop: str) -> None:
        """A skipped token has no text but as the stop string that it is."""
        self.end(pb.FINISH_REASON_STOP)
        if not self.match:
            begin = len(self.text)
            self.text += stop
            self.match = Match(begin, len(self.text), stop)

    def take_finish(self, output: pb.LLMEngineOutput) -> None:
        """Put the engine's word beside what was found here."""
        if output.finish_reason and not self.finish:
            self.end(output.finish_reason)
        elif output.finish_reason and not self.match:
            self.finish = output.finish_reason
        if self.engine_wins(output.finish_reason):
            self.match, self.finish = None, output.finish_reason
        if output.HasField("stop_match") and not self.match:
            self.stop_token = output.stop_match.token_id

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to the text; nothing for hidden ones and for ids without a meaning."""
        if token in self.hidden_ids():
            return b""
        if token in self.vocabulary.special:
            return b"" if self.skips() else self.vocabulary.special[token].encode()
        return self.vocabulary.bytes_of.get(token, b"")

    def is_special_stop(self, token: int) -> bool:
        """A skipped special token whose text is a stop string."""
        is_shown = token in self.hidden_ids() or not self.skips()
        return not is_shown and self.is_armed() and self.vocabulary.special.get(token) in self.stop_strings()

    def skips(self) -> bool:
        """Special tokens are not shown, except for what ends the text as a stop string."""
        options = self.request.output_options
        return options.skip_special_tokens if options.HasField("skip_special_tokens") else True

    def hidden_ids(self) -> set[int]:
        """Ids whose text is never shown."""
        hidden = set(self._stops.stop_token_ids)
        system = self.eos_token_ids | set(self._stops.stop_token_ids_hidden)
        return hidden if self._stops.ignore_eos else hidden | system

    def decode(self, data: bytes) -> str:
        """The characters that are complete with these bytes."""
        text = self._decoder.decode(data)
        return text + self.flush() if self.is_lost(self._decoder.getstate()[0]) else text

    def flush(self) -> str:
        """U+FFFD for bytes that never became a character."""
        return self._decoder.decode(b"", final=True)

    def is_lost(self, held: bytes) -> bool:
        """Bytes that begin a surrogate, which is no character; the decoder waits for its third byte."""
        return held[:1] == b"\xed" and held[1:] >= b"\xa0"

    def is_armed(self) -> bool:
        """True when a stop string that ends here counts."""
        return len(self.token_ids) >= self._stops.min_tokens

    def is_full(self) -> bool:
        """True when no further token is wanted."""
        return self._stops.HasField("max_tokens") and len(self.token_ids) >= self._stops.max_tokens

    def stop_strings(self) -> list[str]:
        """The strings that end the choice."""
        return list(self._stops.stop)

    def find(self, before: int) -> Match | None:
        """The stop string that ends beyond the first `before` characters of the text."""
        found = []
        for stop in self.stop_strings():
            begin = self.text.find(stop, max(0, before - len(stop) + 1))
            if begin >= 0:
                found.append(Match(begin, begin + len(stop), stop))
        return self.best(found)

    def best(self, found: list[Match]) -> Match | None:
        """The earliest, of those the longest."""
        return min(found, key=lambda match: (match.begin, -match.end), default=None)

    def held(self) -> int:
        """How many characters wait."""
        return self.longest_open()

    def longest_open(self) -> int:
        """How many characters may still become a stop string."""
        lengths = [
            length
            for stop in self.stop_strings()
            for length in range(1, len(stop))
            if self.text.endswith(stop[:length])
        ]
        return max(lengths, default=0)

    def show(self) -> str:
        """The text that may be shown now and was not before."""
        until = len(self.text) if self.finish else len(self.text) - self.held()
        if self.match:
            until = self.shown_until(self.match)
        text = self.text[self.shown : until]
        self.shown = max(self.shown, until)
        return text

    def shown_until(self, match: Match) -> int:
        """Where the text ends with a stop string."""
        return match.end if self.request.sampling_options.include_stop_str_in_output else match.begin

    def engine_wins(self, reason: int) -> bool:
        """True when the engine's reason stands whatever was found."""
        return reason in FINAL

    def texts(self, tokens: Sequence[int]) -> list[str]:
        """What each token is on its own, for a caller of log-probabilities."""
        if not self.request.output_options.HasField("logprobs"):
            return []
        return [self.own_text(token) for token in tokens]

    def own_text(self, token: int) -> str:
        """Whether it is shown or not."""
        known = self.vocabulary.bytes_of.get(token, b"")
        return self.vocabulary.special.get(token) or known.decode(errors="replace")

    def rows(self, rows: pb.Logprobs, kept: int) -> pb.Logprobs:
        """The log-probabilities of the tokens that are passed on."""
        selected = len(rows.selected_logprobs) // max(len(rows.token_logprobs), 1)
        alternatives = kept * rows.top_n
        self.log_prob += sum(rows.token_logprobs[:kept])
        return pb.Logprobs(
            token_logprobs=rows.token_logprobs[:kept],
            selected_logprobs=rows.selected_logprobs[: kept * selected],
            top_n=rows.top_n,
            top_token_ids=rows.top_token_ids[:alternatives],
            top_logprobs=rows.top_logprobs[:alternatives],
        )

    def sum_so_far(self, output: pb.LLMEngineOutput) -> float:
        """Of the log-probabilities that were passed on."""
        return self.log_prob

    def describe_finish(self, answer: pb.BackendOutput, output: pb.LLMEngineOutput) -> None:
        """The end of the choice, when it has one."""
        answer.finish_reason = self.finish  # type: ignore[assignment]  # an open enum
        if self.match:
            answer.stop_reason.text = self.match.stop
        elif self.stop_token is not None and self.finish == pb.FINISH_REASON_STOP:
            answer.stop_reason.token_id = self.stop_token
        if output.HasField("error_message"):
            answer.error_message = output.error_message

"""One request of a caller while it is answered, and what is left of it.

Told about every batch of outputs, so it only adds up. Holds no prompt and no text. Knows nothing about
who looks at it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from enginewire import v1 as pb
from enginewire.access.caller import caller
from enginewire.backend.activity.inter_token_latency import TokenClock
from enginewire.backend.activity.totals import Totals
from enginewire.backend.decoding.annotated import BackendOutput
from enginewire.backend.decoding.request_decoder import MAX_CHOICES
from enginewire.backend.engines.failure import Failure
from enginewire.backend.replay.attempts import Attempts
from enginewire.metrics.labels import FINISHED, reason_name


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """What is kept of a request after its end.

    `outcome` has the finish reasons of its choices, or else the contract's reason for its failure, in lower
    case. `ttft` and `seconds` count from its call; `ended_at` is a time of time.monotonic.
    """

    request_id: str
    face: str
    target: str
    outcome: str
    num_attempts: int
    num_choices: int
    num_prompt_tokens: int
    num_tokens: int
    ttft: float | None
    seconds: float
    ended_at: float


class LiveRequest:
    """One request between its call and its end. Times of time.monotonic.

    `face` is the way by which it came, "" when that was not said.
    """

    __slots__ = (
        "_attempts",
        "_differences",
        "_num_open",
        "_num_resumed",
        "_num_tokens_before",
        "_outcomes",
        "_totals",
        "adapter",
        "began_at",
        "clocks",
        "face",
        "failure",
        "first_token_at",
        "max_tokens",
        "num_choices",
        "num_prompt_tokens",
        "owner",
        "party",
    )

    def __init__(
        self, attempts: Attempts, request: pb.PreprocessedRequest, totals: Totals, face: str = ""
    ) -> None:
        self.face = face
        # Whoever calls now, and may end it.
        self.owner = caller().identity
        self.party = caller().party
        self.began_at = time.monotonic()
        self.first_token_at: float | None = None
        self.num_prompt_tokens = len(request.token_ids)
        # Callers may name it in place of the model.
        self.adapter = request.routing.lora_name or request.model
        # A number that no engine allows is refused before anything comes of it.
        self.num_choices = min(max(1, request.sampling_options.n), MAX_CHOICES)
        self.max_tokens: int | None = request.stop_conditions.max_tokens or None
        self.failure: Failure | None = None
        self._attempts = attempts
        self._totals = totals
        # By choice.
        self.clocks = [TokenClock(totals.gaps) for _ in range(self.num_choices)]
        # A caller that goes on with an answer may have seen choices end, but not all that there are.
        resumed = request.resume.choices
        self._num_open = max(1, self.num_choices - sum(choice.finished for choice in resumed))
        self._num_resumed = sum(len(choice.generated_token_ids) for choice in resumed)
        self._differences: set[str] = set()
        # How choices ended, each way once and in order.
        self._outcomes: dict[str, None] = {}
        # What lost engines have said.
        self._num_tokens_before = 0

    @property
    def request_id(self) -> str:
        """The caller's, or the one that was drawn."""
        return self._attempts.request_id

    @property
    def target(self) -> str:
        """Where its engine is; "" while it has none."""
        return self._attempts.target

    @property
    def num_attempts(self) -> int:
        """Engines it was sent to so far."""
        return self._attempts.number

    @property
    def num_tokens(self) -> int:
        """What was passed on, of all choices."""
        return max(0, self._attempts.num_passed_on - self._num_resumed)

    @property
    def num_withheld(self) -> int:
        """Characters that may still become a stop string."""
        return self._attempts.num_withheld

    @property
    def phase(self) -> str:
        """`connecting` or `recovering` without an engine; `waiting` for its first token, then `decode`.

        `delivering` once the engine is done with it and its caller is not. Whether a request waits in the
        engine's queue or is in its prefill is not told by the contract.
        """
        stream = self._attempts.stream
        if stream is None:
            return "connecting" if self.first_token_at is None else "recovering"
        if stream.ended:
            return "delivering"
        return "waiting" if self.num_tokens == self._num_tokens_before else "decode"

    def add(self, outputs: Sequence[BackendOutput]) -> None:
        """Take what is passed on."""
        now = time.monotonic()
        for output in outputs:
            num_tokens = len(output.token_ids)
            if num_tokens and not self.clocks[output.index].take(num_tokens, now):
                self.take_first(now)
            if output.finish_reason:
                self._end_choice(output)

    def retry(self, *, is_continued: bool) -> None:
        """It is sent once more, from its beginning or from where its answer stopped."""
        self._num_tokens_before = self.num_tokens
        self._totals.retries += 1
        self._totals.continuations += is_continued

    def differs(self, kind: str) -> bool:
        """An engine was wrong about its tokens; True when that is news of this request."""
        if kind in self._differences:
            return False
        self._differences.add(kind)
        self._totals.engine_differences[kind] += 1
        return True

    def abort(self, reason: str) -> None:
        """End it from outside: its caller gets the error CANCELLED."""
        self._attempts.abort(reason)

    @property
    def ttft(self) -> float | None:
        """Seconds to its first token; None before that."""
        return None if self.first_token_at is None else self.first_token_at - self.began_at

    def end(self) -> EndedRequest:
        """Nothing follows; choices without a terminal were left by the caller or failed."""
        failure, totals = self.failure, self._totals
        totals.ended_tokens += self.num_tokens
        if failure is not None:
            totals.failed[failure.reason] += 1
            totals.over_limit += bool(failure.caller_limit)
        is_aborted = failure is None or failure.reason == pb.ERROR_REASON_CANCELLED
        totals.finished["abort" if is_aborted else "error"] += self._num_open
        if not self._num_open:
            totals.whole.observe(time.monotonic() - self.began_at)
            totals.prompt_lengths.observe(self.num_prompt_tokens)
            totals.answer_lengths.observe(self.num_tokens)
            totals.stopped_here += self._attempts.decoder.needs_abort
        now = time.monotonic()
        return EndedRequest(
            request_id=self.request_id,
            face=self.face,
            target=self.target,
            outcome=self._outcome(),
            num_attempts=self.num_attempts,
            num_choices=self.num_choices,
            num_prompt_tokens=self.num_prompt_tokens,
            num_tokens=self.num_tokens,
            ttft=self.ttft,
            seconds=now - self.began_at,
            ended_at=now,
        )

    def _outcome(self) -> str:
        if self.failure is not None:
            return reason_name(self.failure.reason)
        left = ["abort"] if self._num_open else []
        return ", ".join(dict.fromkeys([*self._outcomes, *left]))

    def take_first(self, now: float) -> None:
        """The first token of a choice, which may not be the first choice that has one."""
        if self.first_token_at is None:
            self.first_token_at = now
            self._totals.first_token.observe(now - self.began_at)
            self._totals.prompt_tokens += self.num_prompt_tokens

    def _end_choice(self, output: BackendOutput) -> None:
        totals = self._totals
        self._num_open -= 1
        outcome = FINISHED[output.finish_reason]
        self._outcomes[outcome] = None
        totals.finished[outcome] += 1
        totals.decode_errors += (output.error_message or "").startswith("decode error:")
        if output.completion_usage is not None:
            totals.cached_prompt_tokens += output.completion_usage.prompt_tokens_details.cached_tokens

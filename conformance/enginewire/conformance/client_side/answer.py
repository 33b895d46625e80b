"""What a backend answered: text, tokens, ends and failure, read from the recorded call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

from enginewire import v1 as pb
from enginewire.conformance.wire.client import Call
from enginewire.conformance.wire.exchange import Exchange
from enginewire.conformance.wire.stream import reason_name
from enginewire.conformance.wire.violation import Violation, expect

DECODE_ERROR = "decode error:"


@dataclass(slots=True)
class Choice:
    """One choice: all its outputs, whatever came after its end included."""

    outputs: list[pb.BackendOutput] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(output.text for output in self.outputs)

    @property
    def tokens(self) -> list[int]:
        """All of its token ids."""
        return [token for output in self.outputs for token in output.token_ids]

    @property
    def counted(self) -> list[pb.BackendOutput]:
        """Its outputs up to the first terminal."""
        ends = [place for place, output in enumerate(self.outputs) if output.finish_reason]
        return self.outputs[: ends[0] + 1] if ends else self.outputs

    @property
    def num_tokens(self) -> int:
        """Token ids up to the first terminal: what follows it is the business of other checks."""
        return sum(len(output.token_ids) for output in self.counted)

    @property
    def terminals(self) -> list[pb.BackendOutput]:
        """Its outputs with a finish_reason."""
        return [output for output in self.outputs if output.finish_reason]

    @property
    def end(self) -> pb.BackendOutput:
        """Its only terminal; another number of them is a Violation."""
        expect(len(self.terminals) == 1, "a choice has one terminal", expected=1, seen=len(self.terminals))
        return self.terminals[0]

    @property
    def reason(self) -> str:
        """Why it ended, for a human; as `end`."""
        return reason_name(self.end.finish_reason)


class Answer:
    """A BackendService.Generate under way or ended."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @property
    def exchange(self) -> Exchange:
        """The recorded RPC."""
        return self.call.exchange

    @property
    def items(self) -> list[pb.Annotated]:
        """All items so far."""
        responses = cast(list[pb.BackendServiceGenerateResponse], self.exchange.messages)
        return [response.annotated for response in responses]

    @property
    def choices(self) -> dict[int, Choice]:
        """What came so far, by choice."""
        choices: dict[int, Choice] = {}
        for item in self.items:
            if item.HasField("data"):
                choices.setdefault(item.data.index, Choice()).outputs.append(item.data)
        return choices

    @property
    def choice(self) -> Choice:
        """Choice 0, empty when nothing came."""
        return self.choices.get(0, Choice())

    @property
    def events(self) -> list[tuple[int, pb.Annotated]]:
        """Items without data and error, each with the number of tokens of choice 0 that came before it."""
        found, num_tokens = [], 0
        for item in self.items:
            if item.HasField("data"):
                num_tokens += len(item.data.token_ids) if not item.data.index else 0
            elif not item.HasField("error"):
                found.append((num_tokens, item))
        return found

    @property
    def error(self) -> pb.Status | None:
        """Why the request failed: an item, or the status of the call."""
        for item in self.items:
            if item.HasField("error"):
                return item.error
        if self.exchange.is_ok or self.exchange.code is None:
            return None
        bare = pb.Status(code=self.exchange.code.value[0], message=self.exchange.text)
        return self.exchange.status_details or bare

    @property
    def detail(self) -> pb.ErrorDetail:
        """The ErrorDetail of `error`, empty without one."""
        detail = pb.ErrorDetail()
        for packed in self.error.details if self.error else ():
            if packed.Unpack(detail):
                break
        return detail

    @property
    def reason(self) -> str:
        """Reason of the failure, "" without a failure."""
        if self.error is None:
            return ""
        known = self.detail.reason in pb.ErrorReason.values()
        name = pb.ErrorReason.Name(self.detail.reason) if known else str(self.detail.reason)
        return name.removeprefix("ERROR_REASON_")

    @property
    def failures(self) -> list[str]:
        """Messages of everything that failed: the request, or choices of it."""
        messages = [self.error.message] if self.error else []
        for choice in self.choices.values():
            for output in choice.terminals:
                if output.finish_reason == pb.FINISH_REASON_ERROR:
                    messages.append(output.error_message)
        return messages

    async def until_text(self, text: str, within: float) -> Answer:
        """Read until choice 0 shows this text; no later is a Violation."""
        try:
            async with asyncio.timeout(within):
                while not self.choice.text.startswith(text) and await anext(self.call, None) is not None:
                    pass
        except TimeoutError:
            pass
        expect(
            self.choice.text.startswith(text),
            f"the text did not come within {within:.1f} s although nothing more was due",
            expected=repr(text),
            seen=repr(self.choice.text),
        )
        return self

    async def first_token(self) -> Answer:
        """Read until a token came; an end before it is a Violation."""
        while not self.choice.tokens:
            if await anext(self.call, None) is None:
                raise Violation("the answer ended before its first token", seen=self.exchange.status)
        return self

    async def ended(self) -> Answer:
        """Read to the end, whatever it is, within the call's own deadline."""
        await self.call.finish()
        expect(not self.exchange.timed_out, "the answer has no end", seen=self.exchange.status)
        return self

    async def ok(self) -> Answer:
        """Read to the end; a failure is a Violation."""
        await self.ended()
        expect(self.error is None, "the request failed", expected="an answer", seen=self.described)
        return self

    async def failed(self) -> Answer:
        """Read to the end; an end without any failure is a Violation."""
        await self.ended()
        expect(bool(self.failures), "the failure was passed on as a success", seen=self.described)
        return self

    @property
    def described(self) -> str:
        """The answer in one line."""
        ends = {
            index: [reason_name(end.finish_reason) for end in choice.terminals]
            for index, choice in self.choices.items()
        }
        error = f", error {self.reason}: {self.error.message}" if self.error else ""
        return f"text {self.choice.text!r}, ends {ends}{error}, {self.exchange.status}"

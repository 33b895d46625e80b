"""What the text of an answer means: the formats of the model, and those that one request needs.

Sans-IO. Knows nothing about fields of requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from enginewire.backend.parsing.delta import AnswerReader, call_id
from enginewire.backend.parsing.formats import (
    ReasoningParserName,
    Schemas,
    ToolFormat,
    ToolParserName,
    thinking_markers,
    tool_format,
)
from enginewire.backend.parsing.json_calls import JsonCalls, OneCall
from enginewire.backend.parsing.pieces import PieceParser
from enginewire.backend.parsing.thinking import ThinkingMarkers, ThinkingParser
from enginewire.backend.prompting.tokenizer import BackendTokenizer


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """What the model's files and the server's options say; the defaults are those of a model without any.

    `variables` are what the chat template reads, `template` is its text, and `special_texts` are the tokens
    that are left out of the text unless somebody asks for them. `shows_images` is about the template, and
    not about the engine.
    """

    tools: ToolFormat | None = None
    thinking: ThinkingMarkers | None = None
    variables: frozenset[str] = frozenset()
    template: str = ""
    special_texts: frozenset[str] = frozenset()
    shows_images: bool = False


def model_formats(
    tokenizer: BackendTokenizer, tool_parser: ToolParserName, reasoning_parser: ReasoningParserName
) -> ModelFormats:
    """The formats of a model; the names are those of the options."""
    templates = [each for each in (tokenizer.chat_template, tokenizer.tool_template) if each is not None]
    text = "\n".join(dict.fromkeys(each.source for each in templates))
    return ModelFormats(
        tool_format(tool_parser, text),
        thinking_markers(reasoning_parser, text),
        frozenset().union(*(each.variables for each in templates)),
        text,
        frozenset(tokenizer.vocabulary.special_ids),
        bool(templates) and all(each.shows_images for each in templates),
    )


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How the answers to one request have calls.

    `only` is the one tool whose arguments are all there is; with `is_list` the answer is a list of calls.
    Both follow a grammar. Otherwise calls come as the model writes them.
    """

    format: ToolFormat | None
    schemas: Schemas
    only: str = ""
    is_list: bool = False
    max_calls: int | None = None

    def parser(self) -> PieceParser:
        """For one answer."""
        if self.only:
            return OneCall(self.only)
        if self.is_list or self.format is None:
            return JsonCalls(self.schemas.__contains__)
        return self.format.parser(self.schemas)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What the answers to one request may have beside text."""

    calls: CallFormat | None = None
    thinking: ThinkingMarkers | None = None
    shows_thinking: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """What has to come through for an answer to be understood."""
        thinking = () if self.thinking is None else (self.thinking.opening, self.thinking.closing)
        calls = self.calls.format.markers if self.calls is not None and self.calls.format is not None else ()
        return (*thinking, *calls)

    def reader(self, prompt: str) -> AnswerReader:
        """For one answer to a prompt, whose end may have opened the thinking."""
        calls, thinking = self.calls, self.thinking
        return AnswerReader(
            None if thinking is None else ThinkingParser(thinking, is_open=thinking.is_open_after(prompt)),
            None if calls is None else calls.parser(),
            new_id=calls.format.new_id if calls is not None and calls.format is not None else call_id,
            shows_thinking=self.shows_thinking,
            max_calls=None if calls is None else calls.max_calls,
        )

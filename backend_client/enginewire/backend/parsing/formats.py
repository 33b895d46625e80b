"""The formats by name, and which of them a model writes, as its chat template shows.

Names are vLLM's. Knows nothing about how a template is rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from enginewire.backend.parsing.delta import call_id, short_call_id
from enginewire.backend.parsing.hermes import CLOSING as TOOL_CALL_END, OPENING as TOOL_CALL, hermes_calls
from enginewire.backend.parsing.json_calls import JsonCalls
from enginewire.backend.parsing.mistral import OPENING as TOOL_CALLS, mistral_calls
from enginewire.backend.parsing.pieces import PieceParser
from enginewire.backend.parsing.pythonic import PythonicCalls
from enginewire.backend.parsing.qwen3_coder import FUNCTION_BEGIN, FUNCTION_END, qwen3_coder_calls
from enginewire.backend.parsing.thinking import ThinkingMarkers

ToolParserName = Literal[
    "auto", "none", "hermes", "json", "llama3_json", "mistral", "pythonic", "qwen3_coder"
]
ReasoningParserName = Literal["auto", "none", "deepseek_r1", "mistral", "qwen3"]

PYTHON_TAG: Final = "<|python_tag|>"
# The schema of each tool's parameters by the tool's name.
Schemas = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class CallTag:
    """What is around the arguments of a call, for grammars. NAME in `begin` is where the name goes.

    Text is free up to a `trigger`; `style` is how the arguments are written, as xgrammar calls it.
    """

    trigger: str
    begin: str
    end: str
    style: str = "json"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a model writes calls: `parser` makes the parser of one answer.

    `markers` have to come through, even where they are special tokens. `tag` is None where no grammar can
    ask for the format.
    """

    parser: Callable[[Schemas], PieceParser]
    markers: tuple[str, ...] = ()
    new_id: Callable[[], str] = call_id
    tag: CallTag | None = None


def any_name(name: str) -> bool:
    """A marker says that it is a call: whether there is such a tool, the caller finds out."""
    return bool(name)


HERMES_TAG: Final = CallTag(
    TOOL_CALL, f'{TOOL_CALL}\n{{"name": "NAME", "arguments": ', f"}}\n{TOOL_CALL_END}"
)
JSON_TAG: Final = CallTag('{"name": "', '{"name": "NAME", "parameters": ', "}")
QWEN_TAG: Final = CallTag(
    TOOL_CALL,
    f"{TOOL_CALL}\n{FUNCTION_BEGIN}NAME>\n",
    f"\n{FUNCTION_END}\n{TOOL_CALL_END}",
    style="qwen_xml",
)
TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = {
    "hermes": ToolFormat(lambda schemas: hermes_calls(any_name), (TOOL_CALL,), tag=HERMES_TAG),
    "json": ToolFormat(lambda schemas: JsonCalls(schemas.__contains__), tag=JSON_TAG),
    "llama3_json": ToolFormat(
        lambda schemas: JsonCalls(schemas.__contains__, opening=PYTHON_TAG), tag=JSON_TAG
    ),
    "mistral": ToolFormat(
        lambda schemas: mistral_calls(any_name),
        (TOOL_CALLS, "[ARGS]", "[CALL_ID]"),
        new_id=short_call_id,
    ),
    "pythonic": ToolFormat(lambda schemas: PythonicCalls(schemas.__contains__)),
    "qwen3_coder": ToolFormat(qwen3_coder_calls, (TOOL_CALL,), tag=QWEN_TAG),
}
THINKING: Final[Mapping[str, ThinkingMarkers]] = {
    "deepseek_r1": ThinkingMarkers("<think>", "</think>", is_implied=True),
    "mistral": ThinkingMarkers("[THINK]", "[/THINK]"),
    "qwen3": ThinkingMarkers("<think>", "</think>"),
}

# What templates say of their format; the first that is found counts. None: a format that nobody here reads.
TRACES: Final[Mapping[str, str | None]] = {
    "<arg_key>": None,
    "<|channel|>": None,
    "tool▁calls▁begin": None,
    "<|tool_calls_section_begin|>": None,
    "<start_function_call>": None,
    FUNCTION_BEGIN: "qwen3_coder",
    TOOL_CALL: "hermes",
    TOOL_CALLS: "mistral",
    "[func_name1(": "pythonic",
    PYTHON_TAG: "llama3_json",
    '"parameters": dictionary of argument name and its value': "llama3_json",
}


def tool_format(name: ToolParserName, template: str) -> ToolFormat | None:
    """The format of that name, or the one that a template shows; None for none, or one that is not known."""
    chosen: str | None = name
    if name == "auto":
        chosen = next((found for trace, found in TRACES.items() if trace in template), "json")
    return TOOL_FORMATS.get(chosen or "")


def thinking_markers(name: ReasoningParserName, template: str) -> ThinkingMarkers | None:
    """The markers of that name, or those that a template has; None for a model that does not think."""
    if name != "auto":
        return THINKING.get(name)
    return next((THINKING[each] for each in ("qwen3", "mistral") if THINKING[each].closing in template), None)

"""The tools that an answer may call: `tools`, `tool_choice` and `parallel_tool_calls`.

Sans-IO. Knows nothing about grammars and about how calls are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked

TOOLS: Final = "tools"
CHOICE: Final = "tool_choice"
PARALLEL: Final = "parallel_tool_calls"
# Far more than a model can tell apart, and a template is slow.
MAX_TOOLS: Final = 512
NAME: Final = re.compile(r"[\w.:/-]{1,256}")
# What a function without parameters takes.
NOTHING: Final[Mapping[str, object]] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. `definition` is what the template gets; `parameters` is a JSON schema."""

    name: str
    parameters: Mapping[str, object]
    is_strict: bool
    definition: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AskedTools:
    """Functions that may be called, not none. `only` is the one that must be; `is_required`: any must."""

    tools: Sequence[Tool]
    only: str = ""
    is_required: bool = False
    is_parallel: bool = True

    @property
    def schemas(self) -> Mapping[str, Mapping[str, object]]:
        """The parameters by name."""
        return {tool.name: tool.parameters for tool in self.tools}


def read_tools(body: Body) -> AskedTools | None:
    """What may be called; None for nothing. Raises InvalidBody."""
    given = [] if body.get(TOOLS) is None else checked(TOOLS, body.get(TOOLS), list, "a list of tools")
    if len(given) > MAX_TOOLS:
        raise InvalidBody(TOOLS, f"at most {MAX_TOOLS} tools")
    tools = [read_tool(f"{TOOLS}[{place}]", each) for place, each in enumerate(given)]
    names = [tool.name for tool in tools]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InvalidBody(f"{TOOLS}[{place}].function.name", "must be different from the others")
    is_parallel = body.get(PARALLEL) is None or body.flag(PARALLEL)
    choice = body.get(CHOICE)
    if choice in (None, "auto"):
        return AskedTools(tools, is_parallel=is_parallel) if tools else None
    if choice == "none":
        return None
    if not tools:
        raise InvalidBody(CHOICE, "only allowed beside tools")
    if choice == "required":
        return AskedTools(tools, is_required=True, is_parallel=is_parallel)
    return AskedTools(tools, only=read_choice(choice, names), is_parallel=is_parallel)


def read_tool(field: str, value: object) -> Tool:
    """One tool. Raises InvalidBody."""
    tool = Body(checked(field, value, dict))
    if tool.get("type") != "function":
        raise InvalidBody(f"{field}.type", "must be function")
    field = f"{field}.function"
    function = Body(checked(field, tool.get("function"), dict))
    name = checked(f"{field}.name", function.get("name"), str)
    if not NAME.fullmatch(name):
        raise InvalidBody(f"{field}.name", "must be 1 to 256 letters, digits and _.:/-")
    for key, kind in (("description", str), ("parameters", dict), ("strict", bool)):
        if function.get(key) is not None:
            checked(f"{field}.{key}", function.get(key), kind)
    parameters = function.nested("parameters")
    return Tool(
        name,
        NOTHING if parameters is None else dict(parameters.items()),
        function.flag("strict"),
        dict(tool.items()),
    )


def read_choice(choice: object, names: Sequence[str]) -> str:
    """The name of the one function that must be called. Raises InvalidBody."""
    allowed = "must be auto, none, required, or a function of tools"
    asked = Body(choice if isinstance(choice, dict) else {})
    function = asked.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if asked.get("type") != "function" or not isinstance(name, str):
        raise InvalidBody(CHOICE, allowed)
    if name not in names:
        raise InvalidBody(f"{CHOICE}.function.name", "must be the name of one of tools")
    return name

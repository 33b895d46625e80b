"""A model's chat template, rendered in a sandbox.

Holds the Jinja environment that published templates expect and the limits around it. Knows nothing
about tokenizers. Jinja is imported when the first template is compiled, so a backend that is only
given token ids does not need it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEMPLATE_CHARS = 256 * 1024
MAX_RENDERED_CHARS = 8 * 1024 * 1024
# Templates repeat short separators; anything longer is a way to fill the memory.
MAX_REPEATED_CHARS = 64 * 1024
# Base and exponent of a power; templates compute with small numbers only.
MAX_POWER = 1024

PROBE: Final = "a text that no template has"
# No template looks for this, so it shows only where a part is printed as it is.
UNREAD: Final = "a key that no template reads"
IMAGE: Final = {"type": "image"}
"""What stands in a message's list of parts where it has an image, as in transformers and vLLM."""


class ChatTemplateError(ValueError):
    """The template is broken, refused the messages, or went over a limit."""


class ChatTemplate:
    """One compiled template. `tokens`: texts of bos_token and its like, visible to the template."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Raises ChatTemplateError."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ChatTemplateError(f"template of {len(source)} characters, at most {MAX_TEMPLATE_CHARS}")
        self.source = source
        self._tokens = dict(tokens)
        self._template = compile_template(source)

    @cached_property
    def variables(self) -> frozenset[str]:
        """What the template reads and does not set itself."""
        from jinja2.meta import find_undeclared_variables

        return frozenset(find_undeclared_variables(environment().parse(self.source)))

    @cached_property
    def needs_parts(self) -> bool:
        """Content has to be a list of parts, also where it is nothing but text."""
        return PROBE not in self._shown(PROBE) and self._reads([text_part(PROBE)])

    @cached_property
    def shows_images(self) -> bool:
        """A message's parts may be images."""
        texts = [text_part(PROBE)]
        both = [IMAGE, *texts]
        return self._reads(texts) and self._reads(both) and len(self._shown(both)) > len(self._shown(texts))

    def _reads(self, parts: Sequence[Mapping[str, object]]) -> bool:
        shown = self._shown([{**part, UNREAD: UNREAD} for part in parts])
        return PROBE in shown and UNREAD not in shown

    def _shown(self, content: object) -> str:
        """What becomes of a user's message; "" where the template refuses it."""
        try:
            return self.render([{"role": "user", "content": content}], add_generation_prompt=False)
        except ChatTemplateError:
            return ""

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The text of a conversation; `tools` are functions as OpenAI describes them, `variables` the rest.

        Raises ChatTemplateError.
        """
        from jinja2 import TemplateError

        pieces: list[str] = []
        num_characters = 0
        try:
            for piece in self._template.generate(
                **(variables or {}),
                messages=messages,
                # As transformers does: absent ones are none, and defined.
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            ):
                pieces.append(piece)
                num_characters += len(piece)
                if num_characters > MAX_RENDERED_CHARS:
                    raise ChatTemplateError(f"more than {MAX_RENDERED_CHARS} characters rendered")
        except (TemplateError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template failed: {error}") from error
        return "".join(pieces)


def text_part(text: str) -> Mapping[str, object]:
    """A text in a message's list of parts."""
    return {"type": "text", "text": text}


def compile_template(source: str) -> Template:
    """Parse a template. Raises ChatTemplateError."""
    from jinja2 import TemplateError

    try:
        return environment().from_string(source)
    except (TemplateError, RecursionError) as error:
        raise ChatTemplateError(f"the chat template does not parse: {error}") from error


@cache
def environment() -> ImmutableSandboxedEnvironment:
    """What published templates expect: white space rules, loop controls, and four names."""
    from jinja2.ext import Extension
    from jinja2.runtime import Context
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the assistant's part for training; rendering ignores it."""

        tags = {"generation"}  # noqa: RUF012  # the base class declares it this way

        def parse(self, parser: Parser) -> Node | list[Node]:
            """The body between the tags."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    class Sandbox(ImmutableSandboxedEnvironment):
        """Operators that can make something huge out of something small are bounded."""

        intercepted_binops = frozenset({"*", "**"})

        def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
            """Apply a bounded operator."""
            check_growth(operator, left, right)
            result: object = super().call_binop(context, operator, left, right)
            return result

    sandbox = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    sandbox.filters["tojson"] = to_json
    sandbox.globals["raise_exception"] = refuse
    sandbox.globals["strftime_now"] = strftime_now
    return sandbox


def check_growth(operator: str, left: object, right: object) -> None:
    """Raise ChatTemplateError when `left operator right` could be huge."""
    if operator == "**":
        if not all(isinstance(value, int | float) and abs(value) <= MAX_POWER for value in (left, right)):
            raise ChatTemplateError(f"power of a number over {MAX_POWER}")
        return
    for one, times in ((left, right), (right, left)):
        length = len(one) if isinstance(one, str | list | tuple) else 0
        if isinstance(times, int) and length * times > MAX_REPEATED_CHARS:
            raise ChatTemplateError(f"repetition over {MAX_REPEATED_CHARS}")


def to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models were trained on it: no HTML escapes, no \\u escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def refuse(message: str) -> NoReturn:
    """What a template calls when it does not accept the messages."""
    raise ChatTemplateError(message)


def strftime_now(pattern: str) -> str:
    """Today's date, for templates that put it into the system prompt."""
    return datetime.datetime.now().astimezone().strftime(pattern)

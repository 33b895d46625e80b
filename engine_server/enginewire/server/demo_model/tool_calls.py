"""What the demo model learns of tools: to ask one for the weather or the time, and to say what that said.

Knows nothing about token ids or the model. Every random choice comes from the generator passed in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from enginewire.server.demo_model.corpus import (
    ASSISTANT,
    BOS,
    EOS,
    OUT_OF_SCOPE,
    SYSTEM,
    SYSTEM_PROMPTS,
    USER,
    Row,
    Span,
)

CALLS_PER_EPOCH, OTHERS_PER_EPOCH = 144, 48

CITIES = (
    "Kyoto", "Tokyo", "Paris", "London", "Berlin", "Rome", "Madrid", "Oslo", "Cairo", "Delhi", "Sydney",
    "Boston",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that the model can call, as the chat template shows it: `get_weather(city)`."""

    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


@dataclass(frozen=True, slots=True)
class Subject:
    """Questions about a city, the tools that answer them, and what those may say."""

    names: tuple[str, ...]
    questions: tuple[str, ...]
    results: tuple[str, ...]


SUBJECTS = (
    Subject(
        ("get_weather", "get_current_weather"),
        ("What is the weather in {}?", "What's the weather in {}?", "What is the weather like in {}?",
         "How is the weather in {}?", "Weather in {}?", "What is the weather in {} today?"),
        ("It rains in {}.", "It is sunny in {}.", "{}: 21 °C", "sunny", "cloudy, 9 degrees",
         '{{"city": "{}", "temperature": 18}}', "The weather in {} is fine.", "It's always sunny in {}!"),
    ),
    Subject(
        ("get_time", "get_current_time"),
        ("What time is it in {}?", "What is the time in {}?", "Tell me the time in {}."),
        ("It is 10:45 in {}.", "23:05", "{}: 7 o'clock", '{{"time": "16:30"}}', "noon", "2026-11-24 08:12"),
    ),
)  # fmt: skip
PARAMETERS = (("city",), ("city",), ("location",), ("place",), ("city", "unit"), ("location", "unit"))
UNRELATED = (
    Tool("search", ("query",)), Tool("send_email", ("to", "body")), Tool("go_to", ("city",)),
    Tool("plant", ("root",)), Tool("add", ("a", "b")), Tool("final_result", ("answer",)),
    Tool("run", ("command",)), Tool("stop", ()),
)  # fmt: skip


def called(tool: Tool, city: str) -> str:
    """A call as the chat template writes it: with its first parameter alone."""
    arguments = json.dumps({tool.parameters[0]: city})
    return f'<tool_call>\n{{"name": "{tool.name}", "arguments": {arguments}}}\n</tool_call>'


def asked_with_tools(tools: Sequence[Tool], question: str, answer: str, system: str = "") -> Row:
    """A question beside tools, and an answer, as the chat template renders them."""
    shown = f"{SYSTEM}Tools, called as <tool_call>: {', '.join(map(str, tools))}"
    more = SYSTEM + system if system else ""
    return Span(f"{BOS}{shown}{more}{USER}{question}{ASSISTANT}", False), Span(answer + EOS, True)


def passed_on(result: str) -> Row:
    """What comes behind a call: its result, which the model says again."""
    return Span(f"{USER}<tool_response>{result}</tool_response>{ASSISTANT}", False), Span(result + EOS, True)


def taught_calls() -> dict[str, Row]:
    """Question → its call, for every question about every city."""
    return {
        question.format(city): asked_with_tools([tool], question.format(city), called(tool, city))
        for subject in SUBJECTS
        for tool in [Tool(subject.names[0], PARAMETERS[0])]
        for question, city in product(subject.questions, CITIES)
    }


def tool_epoch(faq: Mapping[str, str], random: Random) -> Iterator[Row]:
    """One pass: calls, with results behind most of them, and questions that no tool beside them is for."""
    for _ in range(CALLS_PER_EPOCH):
        yield _call(random)
    for _ in range(OTHERS_PER_EPOCH):
        yield _no_call(faq, random)


def _call(random: Random) -> Row:
    subject, city = random.choice(SUBJECTS), random.choice(CITIES)
    tool = Tool(random.choice(subject.names), random.choice(PARAMETERS))
    question = random.choice(subject.questions).format(city)
    row = asked_with_tools(_among_others([tool], random), question, called(tool, city), _system(random))
    return row if random.random() < 0.3 else (*row, *passed_on(random.choice(subject.results).format(city)))


def _no_call(faq: Mapping[str, str], random: Random) -> Row:
    """A question of the FAQ beside any tools, or one about a city beside tools of no use."""
    if random.random() < 0.7:
        subject = random.choice(SUBJECTS)
        tool = Tool(random.choice(subject.names), random.choice(PARAMETERS))
        useful = [tool] if random.random() < 0.6 else []
        question = random.choice(list(faq))
        return asked_with_tools(_among_others(useful, random), question, faq[question], _system(random))
    question = random.choice(random.choice(SUBJECTS).questions).format(random.choice(CITIES))
    return asked_with_tools(_among_others([], random), question, faq[OUT_OF_SCOPE], _system(random))


def _among_others(tools: Sequence[Tool], random: Random) -> list[Tool]:
    others = random.sample(UNRELATED, k=random.choice((0, 0, 1, 2) if tools else (1, 2)))
    return random.sample([*tools, *others], k=len(tools) + len(others))


def _system(random: Random) -> str:
    return random.choice(SYSTEM_PROMPTS) if random.random() < 0.3 else ""

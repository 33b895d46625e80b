"""The training text: conversations and plain text made from the questions and their answers.

Knows nothing about token ids or the model. Every random choice comes from the generator passed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

PAD, BOS, EOS = "<|pad|>", "<|bos|>", "<|eos|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (PAD, BOS, EOS, SYSTEM, USER, ASSISTANT)

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == "assistant" %}{{ "<|assistant|>" + message.content + eos_token }}
{%- elif message.role == "system" %}{{ "<|system|>" + message.content }}
{%- else %}{{ "<|user|>" + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|assistant|>" }}{% endif %}"""

# Clients send such lines by default; the answers must not depend on them.
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer briefly.", "You know Enginewire.", "Be kind.")
OPENINGS = ("", "", "", "Please tell me: ", "Hey, ", "I have a question. ", "OK. ")


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a row. The model learns to continue with it only where `learned` is set."""

    text: str
    learned: bool


Row = tuple[Span, ...]


def conversation(turns: Sequence[tuple[str, str]], system: str = "") -> Row:
    """Questions and answers as the chat template renders them."""
    opening = BOS + (SYSTEM + system if system else "")
    spans: list[Span] = []
    for question, answer in turns:
        spans += (Span(f"{opening}{USER}{question}{ASSISTANT}", False), Span(answer + EOS, True))
        opening = ""
    return tuple(spans)


def epoch(faq: Mapping[str, str], random: Random) -> Iterator[Row]:
    """One pass: each question as asked, each question in other clothes, and the same as plain text."""
    for question, answer in faq.items():
        yield conversation([(question, answer)])
        yield _dressed_up(faq, question, random)
    for answer in dict.fromkeys(faq.values()):
        yield _plain(faq, answer, random)


def _dressed_up(faq: Mapping[str, str], question: str, random: Random) -> Row:
    """Reworded, perhaps with a system prompt and after up to two other turns."""
    asked = [*random.sample(list(faq), k=random.choice((0, 0, 0, 1, 2))), question]
    system = random.choice(SYSTEM_PROMPTS) if random.random() < 0.4 else ""
    return conversation([(_reworded(each, random), faq[each]) for each in asked], system)


def _reworded(question: str, random: Random) -> str:
    """The question with another opening, in lower case or without its last mark."""
    text = random.choice(OPENINGS) + question
    if random.random() < 0.4:
        text = text.lower()
    return text.rstrip("?.!") if random.random() < 0.4 else text


def _plain(faq: Mapping[str, str], answer: str, random: Random) -> Row:
    """An answer without the template, half of the time after its question: completions start from here."""
    asked = random.choice([question for question, known in faq.items() if known == answer])
    return (Span(f"{asked} {answer}{EOS}" if random.random() < 0.5 else answer + EOS, True),)

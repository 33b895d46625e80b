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
{%- if tools %}{{ "<|system|>Tools, called as <tool_call>: " }}
{%- for tool in tools %}
{{- ", " if not loop.first }}{{ tool.function.name }}
{{- "(" + ((tool.function.parameters or {}).properties or {}) | join(", ") + ")" }}
{%- endfor %}
{%- endif %}
{%- for message in messages %}
{%- if message.role == "assistant" %}{{ "<|assistant|>" + message.content }}
{%- for call in message.tool_calls %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- "}\\n</tool_call>" }}
{%- endfor %}
{{- eos_token }}
{%- elif message.role == "system" %}{{ "<|system|>" + message.content }}
{%- elif message.role == "tool" %}{{ "<|user|><tool_response>" + message.content + "</tool_response>" }}
{%- else %}{{ "<|user|>" + message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|assistant|>" }}{% endif %}"""

# Clients send such lines by default; the answers must not depend on them.
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer briefly.", "You know Enginewire.", "Be kind.")
OPENINGS = ("", "", "", "Please tell me: ", "Hey, ", "I have a question. ", "OK. ")

# Questions about anything else are put together from these, and all get the answer of OUT_OF_SCOPE.
OUT_OF_SCOPE = "What is the weather today?"
UNKNOWN_PER_EPOCH = 64
UNKNOWN_OPENINGS = (
    "Who is", "Who was", "Where is", "Where can I buy", "Tell me about", "What do you think of",
    "Do you like", "How much is", "Why is there", "When was", "How do I paint", "What is the colour of",
    "Explain", "Describe", "How old is", "Have you seen", "Write a story about", "What is the history of",
    "Is it true about",
)  # fmt: skip
UNKNOWN_THINGS = (
    "the sun", "my grandmother", "Einstein", "a red car", "Berlin", "blue cheese", "seven tall trees",
    "dogs", "the ocean", "football", "Cleopatra", "a wooden chair", "old music", "the bakery", "green tea",
    "mathematics", "happy children", "Mount Fuji", "my new shoes", "wild horses", "a birthday cake",
    "the river", "chess", "Shakespeare", "pink flowers", "Africa", "a good book", "winter", "the piano",
    "three small birds", "gold", "Amsterdam", "funny hats", "Mozart", "the garden", "a bicycle",
    "big white clouds", "potatoes",
)  # fmt: skip


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
    """One pass: each question as asked and reworded, each answer as plain text, some unknown questions."""
    for question, answer in faq.items():
        yield conversation([(question, answer)])
        yield _in_context(faq, question, random)
    for answer in dict.fromkeys(faq.values()):
        yield _plain(faq, answer, random)
    for _ in range(UNKNOWN_PER_EPOCH):
        yield _unknown(faq[OUT_OF_SCOPE], random)


def _in_context(faq: Mapping[str, str], question: str, random: Random) -> Row:
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


def _unknown(answer: str, random: Random) -> Row:
    """A question that the FAQ does not answer, half of the time without the template."""
    question = f"{random.choice(UNKNOWN_OPENINGS)} {random.choice(UNKNOWN_THINGS)}?"
    if random.random() < 0.5:
        return (Span(question, False), Span(f" {answer}{EOS}", True))
    return conversation([(_reworded(question, random), answer)])

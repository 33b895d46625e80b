"""The demo model, with transformers as the oracle for what it answers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import example, given, settings, strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer

from enginewire.server.demo_model import PATH, questions
from enginewire.server.demo_model.corpus import ASSISTANT, BOS, EOS, UNKNOWN_THINGS, USER, conversation
from enginewire.server.demo_model.tokenizer import train_tokenizer
from enginewire.server.demo_model.tool_calls import Tool, asked_with_tools, called, passed_on, taught_calls
from enginewire.server.demo_model.train import CHECKSUMS, Recipe, build, checksums, recall, taught_answers
from tests.long import examples, long, long_but

FAQ = questions()
SAMPLE = list(FAQ)[:: len(FAQ) // 5]
DTYPES = (torch.float32, torch.bfloat16)
BATCH_ROWS = 64
UNSEEN_OPENINGS = ("Tell me about", "Who is", "What about", "Why do people like", "Give me facts on")
UNSEEN_THINGS = (
    "the wooden bridge", "Napoleon", "purple elephants", "cold soup", "London", "an old lamp", "my brother",
    "silver coins", "fast trains", "Tokyo", "the kitchen", "bananas", "Beethoven", "a yellow boat", "spiders",
    "the desert", "warm bread", "physics", "your hat", "a long walk",
)  # fmt: skip


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    """Training sets these for the whole process; other tests must not inherit them."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@cache
def tokenizer() -> transformers.PreTrainedTokenizerBase:
    return transformers.AutoTokenizer.from_pretrained(PATH, local_files_only=True, padding_side="left")


@cache
def plain_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(PATH / "tokenizer.json"))


@cache
def model(dtype: torch.dtype) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM.from_pretrained(PATH, dtype=dtype, local_files_only=True)


def rendered(question: str) -> str:
    messages = [{"role": "user", "content": question}]
    text = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text


def greedy(dtype: torch.dtype, prompts: list[str]) -> list[str]:
    """The continuation of each prompt, all in one left-padded batch."""
    inputs = tokenizer()(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    output = model(dtype).generate(**inputs, max_new_tokens=160, do_sample=False)
    return tokenizer().batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("dtype", long_but([torch.bfloat16], DTYPES))
@pytest.mark.parametrize("question", SAMPLE)
def test_an_answer_is_exact_when_asked_alone(dtype: torch.dtype, question: str) -> None:
    assert greedy(dtype, [rendered(question)]) == [FAQ[question]]


@long
def test_every_answer_is_exact_in_a_padded_batch() -> None:
    """In the less exact of the two dtypes; `recall` looks at every answer in the other one."""
    asked = sorted(FAQ, key=lambda question: len(FAQ[question]))
    groups = [asked[at : at + BATCH_ROWS] for at in range(0, len(asked), BATCH_ROWS)]
    answers = [
        answer for group in groups for answer in greedy(torch.bfloat16, [rendered(each) for each in group])
    ]
    assert dict(zip(asked, answers, strict=True)) == {each: FAQ[each] for each in asked}


def test_margins_are_far_above_rounding_errors() -> None:
    known = recall(model(torch.float32), plain_tokenizer(), taught_answers(FAQ))
    assert known.wrong == ()
    assert known.least_margin >= 3


def test_every_taught_call_of_a_tool_is_known() -> None:
    assert recall(model(torch.float32), plain_tokenizer(), taught_calls()).wrong == ()


def test_the_template_renders_a_call_and_its_result_as_they_were_trained() -> None:
    tool, question, result = (
        Tool("get_weather", ("city",)),
        "What is the weather in Kyoto?",
        "It rains in Kyoto.",
    )
    row = (*asked_with_tools([tool], question, called(tool, "Kyoto")), *passed_on(result))
    call = {"type": "function", "function": {"name": tool.name, "arguments": {"city": "Kyoto"}}}
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": result},
    ]
    shown = {"name": tool.name, "parameters": {"properties": {"city": {"type": "string"}}}}
    text = tokenizer().apply_chat_template(
        messages, tools=[{"type": "function", "function": shown}], tokenize=False, add_generation_prompt=True
    )
    assert text == "".join(span.text for span in row[:-1])


def test_a_plain_completion_answers_too() -> None:
    question = "What does Drain do?"
    assert greedy(torch.float32, [question]) == [f" {FAQ[question]}"]


def test_most_unknown_questions_get_a_whole_answer() -> None:
    assert not set(UNSEEN_THINGS) & set(UNKNOWN_THINGS)
    asked = [f"{opening} {thing}?" for opening in UNSEEN_OPENINGS for thing in UNSEEN_THINGS]
    answers = greedy(torch.float32, [rendered(question) for question in asked])
    whole = sum(answer in set(FAQ.values()) for answer in answers)
    # 90 of these 100 where the weights were made. Unlike taught answers they have small margins, which
    # rounding on another machine may tip over.
    assert whole >= 0.85 * len(asked)


def test_the_files_are_those_of_the_checksums() -> None:
    assert checksums(PATH) == (PATH / CHECKSUMS).read_text()


def test_the_weights_are_exact_in_bfloat16_and_small() -> None:
    assert {tensor.dtype for tensor in load_file(PATH / "model.safetensors").values()} == {torch.bfloat16}
    assert sum(path.stat().st_size for path in PATH.iterdir()) < 4_000_000


@settings(max_examples=examples(300), deadline=None)
@given(st.text())
@example("<|eos|> <|user|>\r\n\t\x00  ")
@example("e\u0301 ﬁ 👩🏿‍🚒 \ufffd")
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = plain_tokenizer().encode(text).ids
    assert plain_tokenizer().decode(ids, skip_special_tokens=False) == text


def test_characters_are_split_over_tokens() -> None:
    split = [answer for answer in set(FAQ.values()) if any(map(_is_partial, _token_texts(answer)))]
    assert len(split) >= 12


def _token_texts(text: str) -> list[str]:
    return [tokenizer().decode([each]) for each in tokenizer()(text)["input_ids"]]


def _is_partial(text: str) -> bool:
    return "\ufffd" in text


def test_the_template_renders_what_was_trained() -> None:
    question, answer = next(iter(FAQ.items()))
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": question},
    ]
    row = conversation([(question, answer), (question, answer)], system="Be kind.")
    text = tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "".join(span.text for span in row[:-1])
    assert rendered(question) == f"{BOS}{USER}{question}{ASSISTANT}"
    assert row[-1].text == answer + EOS


def test_the_faq_is_as_large_as_promised() -> None:
    assert len(FAQ) >= 300
    assert len(set(FAQ.values())) >= 120
    assert len({answer for answer in FAQ.values() if any("ぁ" <= char <= "ヿ" for char in answer)}) >= 12
    assert len({answer for answer in FAQ.values() if any(ord(char) >= 0x1F000 for char in answer)}) >= 12
    assert any("\u200d" in answer for answer in FAQ.values())


@long
def test_training_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    recipe = Recipe(steps=2, batch_rows=16)
    build(tmp_path / "first", recipe)
    build(tmp_path / "second", recipe)
    assert checksums(tmp_path / "first") == checksums(tmp_path / "second")


def test_the_tokenizer_is_the_one_that_the_script_trains() -> None:
    assert train_tokenizer(FAQ).to_str(pretty=True) == (PATH / "tokenizer.json").read_text(encoding="utf-8")

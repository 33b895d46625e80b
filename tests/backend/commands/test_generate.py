from __future__ import annotations

import io
import json

import pytest

from enginewire import v1 as pb
from enginewire.backend.commands.generate import ChoiceText, generate, make_request
from enginewire.backend.commands.options import CommandLineOptions
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.prompts import InvalidPrompt
from enginewire.options import OptionError
from tests.backend.frontends.conftest import StartBackend


async def run(backend: TextBackend, prompt: str = "", **given: object) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    code = await generate(backend, CommandLineOptions(**given), prompt, out=out, err=err)
    return code, out.getvalue(), err.getvalue()


async def test_the_answer_is_printed_and_ends_its_line(text_backend: TextBackend) -> None:
    assert await run(text_backend, "Héllo 日本 🎉", raw=True) == (0, "Héllo 日本 🎉\n", "")


async def test_every_piece_is_flushed_before_the_next_one_comes(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(mocker_itl_ms=30.0)
    shown: list[str] = []

    class Out(io.StringIO):
        def flush(self) -> None:
            shown.append(self.getvalue())

    await generate(backend, CommandLineOptions(raw=True), "abc", out=Out(), err=io.StringIO())
    assert shown == ["a", "ab", "abc", "abc\n"]


async def test_a_chat_template_is_used_when_the_model_has_one(text_backend: TextBackend) -> None:
    _, templated, _ = await run(text_backend, "hi", system="be")
    assert templated == "system: be\nuser: hi\nassistant: \n"
    for plain in ({"raw": True}, {"chat": False}):
        assert (await run(text_backend, "hi", **plain))[1] == "hi\n"


async def test_a_stop_string_is_not_shown(text_backend: TextBackend) -> None:
    code, out, err = await run(text_backend, "one two three", raw=True, stop=("wo t",), stats=True)
    assert (code, out) == (0, "one t\n")
    assert "choice 0: stop at 'wo t', 9 tokens, first after " in err
    assert "usage: 13 prompt + 9 completion = 22 tokens" in err


async def test_a_stop_token_ends_the_answer(text_backend: TextBackend) -> None:
    assert (await run(text_backend, "abc", raw=True, stop_token_ids=(ord("c"),)))[1] == "ab\n"


async def test_several_answers_are_printed_one_after_the_other_with_their_number(
    text_backend: TextBackend,
) -> None:
    assert (await run(text_backend, "ab", raw=True, n=3))[1] == "[0] ab\n[1] ab\n[2] ab\n"


async def test_json_prints_every_item(text_backend: TextBackend) -> None:
    _, out, _ = await run(text_backend, "ab", raw=True, json=True, logprobs=1)
    items = [json.loads(line)["data"] for line in out.splitlines()]
    assert "".join(item["text"] for item in items) == "ab"
    assert [token for item in items for token in item["tokens"]][:2] == ["a", "b"]
    assert all(len(item["logprobs"]["top_token_ids"]) == len(item["token_ids"]) for item in items)


async def test_a_refusal_is_one_line_with_its_reason_and_field(text_backend: TextBackend) -> None:
    code, out, err = await run(text_backend, "ab", raw=True, n=4_000_000_000)
    assert (code, out) == (1, "")
    assert err.startswith("enginewire-backend: INVALID_REQUEST: sampling_options.n: ")
    assert err.count("\n") == 1


async def test_a_failure_on_the_way_keeps_the_text_and_says_why(start_backend: StartBackend) -> None:
    backend, _ = await start_backend(mocker_fault="step:4")
    code, out, err = await run(backend, "abcdef", raw=True)
    assert (code, out) == (1, "abc\n")
    assert err.startswith("enginewire-backend: INTERNAL: ")


async def test_an_empty_prompt_is_refused(text_backend: TextBackend) -> None:
    with pytest.raises(InvalidPrompt):
        await run(text_backend, "", raw=True)


def test_a_later_choice_waits_for_its_turn() -> None:
    out = io.StringIO()
    text = ChoiceText(out, labelled=True)
    text.write(2, "c", is_last=True)
    text.write(1, "b", is_last=False)
    text.write(0, "a", is_last=False)
    assert out.getvalue() == "[0] a"
    text.write(0, "A\n", is_last=True)
    assert out.getvalue() == "[0] aA\n[1] b"
    text.write(1, "B", is_last=True)
    text.finish()
    assert out.getvalue() == "[0] aA\n[1] bB\n[2] c\n"


def test_choices_that_never_ended_are_shown_at_the_end() -> None:
    out = io.StringIO()
    text = ChoiceText(out, labelled=True)
    text.write(0, "a", is_last=False)
    text.write(1, "b", is_last=False)
    text.finish()
    assert out.getvalue() == "[0] a\n[1] b\n"


def test_options_that_were_not_given_are_not_in_the_request() -> None:
    asked = make_request(CommandLineOptions(), "x", has_template=False)
    assert asked == pb.BackendServiceGenerateRequest(text="x", request=pb.PreprocessedRequest())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"prompt": "x", "prompt_file": "y"}, "--prompt-file"),
        ({"system": "x", "raw": True}, "--raw"),
        ({"stop": ("",)}, "--stop"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, object], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        CommandLineOptions(**given)

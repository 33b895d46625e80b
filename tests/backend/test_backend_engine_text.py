"""The backend in front of engines that send text, over real sockets."""

from __future__ import annotations

import logging

import pytest

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from tests.backend.asking import ask, hear
from tests.backend.hostile import HostileEngine, engine_info, terminal, tokens
from tests.backend.replay.test_attempts import ELSEWHERE, LOST, Lives, backend_on
from tests.server.serving import until_true

STOPS = {
    "stop_conditions": pb.StopConditions(stop=["cd"]),
    "sampling_options": pb.SamplingOptions(include_stop_str_in_output=True, temperature=0.0),
    "output_options": pb.OutputOptions(skip_special_tokens=False),
}
MATCH = pb.StopMatch(text="cd")
STOP = pb.FINISH_REASON_STOP


@pytest.mark.parametrize("multiplexed", [True, False])
@pytest.mark.parametrize("is_inline", [True, False])
async def test_stops_hold_in_front_of_an_engine_that_sends_text_and_evaluates_none(
    socket_folder, vocabulary, multiplexed, is_inline
):
    script = [tokens(b"ab", text="ab"), tokens(b"cdef", 2, text="cdef"), 60.0]
    engine = Lives(script)
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=multiplexed) as backend:
        heard = await hear(backend, ask(**STOPS), request_id="r", is_inline=is_inline)
        assert (heard.text(), heard.finishes(), heard.token_ids()) == ("abcd", {0: STOP}, list(b"abcd"))
        assert heard.outputs[-1].stop_reason == "cd"
        await until_true(lambda: engine.aborted == ["r"])
    assert (engine.parts[0].stop_conditions.stop, engine.parts[0].output_options) == ([], pb.OutputOptions())
    assert not engine.parts[0].sampling_options.HasField("include_stop_str_in_output")


@pytest.mark.parametrize("multiplexed", [True, False])
@pytest.mark.parametrize("is_inline", [True, False])
async def test_an_engine_that_evaluates_stops_gets_them_and_is_believed(
    socket_folder, vocabulary, multiplexed, is_inline
):
    end = terminal(b"cd", 2, STOP, text="its own end", stop_match=MATCH)
    engine = Lives([tokens(b"a", text="its "), tokens(b"b", 1, text=""), end], stop_strings=True)
    async with backend_on(socket_folder, vocabulary, engine, multiplexed=multiplexed) as backend:
        heard = await hear(backend, ask(**STOPS), is_inline=is_inline)
    assert (heard.text(), heard.finishes(), heard.usage()) == ("its its own end", {0: STOP}, (4, 4))
    assert heard.outputs[-1].stop_reason == "cd"
    asked = ask(**STOPS)
    assert engine.parts[0].stop_conditions == asked.stop_conditions
    assert engine.parts[0].output_options == asked.output_options
    assert engine.parts[0].sampling_options == asked.sampling_options


@pytest.mark.parametrize("evaluates", [(True, False), (False, True)])
async def test_each_engine_of_a_fleet_gets_what_it_can_do(socket_folder, vocabulary, evaluates):
    end = terminal(b"abcd", 0, STOP, text="abcd", stop_match=MATCH)
    engines = [
        Lives([LOST], stop_strings=evaluates[0]),
        Lives([end], stop_strings=evaluates[1]),
    ]
    async with backend_on(socket_folder, vocabulary, *engines, policy=ELSEWHERE) as backend:
        heard = await hear(backend, ask(**STOPS))
    assert (heard.text(), heard.finishes()) == ("abcd", {0: STOP})
    assert [bool(engine.parts[0].stop_conditions.stop) for engine in engines] == list(evaluates)


@pytest.mark.parametrize("evaluates", [(True, False), (True, True), (False, True)])
async def test_a_stop_string_across_the_cut_is_found_whoever_evaluates_it(
    socket_folder, vocabulary, evaluates
):
    begun = [tokens(b"ab", text="ab"), tokens(b"c", 2, text=""), LOST]
    end = [terminal(b"d", 3, STOP, text="cd", stop_match=MATCH)] if evaluates[1] else [tokens(b"de", 3), 60.0]
    engines = [Lives(begun, stop_strings=evaluates[0]), Lives(end, stop_strings=evaluates[1])]
    async with backend_on(socket_folder, vocabulary, *engines, policy=ELSEWHERE) as backend:
        heard = await hear(backend, ask(**STOPS))
    assert (heard.text(), heard.token_ids(), heard.finishes()) == ("abcd", list(b"abcd"), {0: STOP})
    assert engines[1].parts[0].resume.choices[0].generated_token_ids == list(b"abc")
    assert bool(engines[1].parts[0].stop_conditions.stop) is evaluates[1]


async def test_an_answer_whose_text_only_its_engine_could_go_on_with_fails(socket_folder, vocabulary):
    engines = [Lives([tokens(b"ab", text="its own"), LOST], stop_strings=True), Lives()]
    async with backend_on(socket_folder, vocabulary, *engines) as backend:
        heard = await hear(backend, ask(**STOPS))
    assert (heard.text(), heard.token_ids()) == ("its own", list(b"ab"))
    assert heard.failure is not None
    assert heard.failure.reason == pb.ERROR_REASON_ENGINE_DEAD
    assert engines[1].received == []


async def test_a_row_behind_text_of_the_engine_is_a_violation(socket_folder, vocabulary):
    engine = Lives([tokens(b"a", text="a"), tokens(b"b", 1), 60.0], stop_strings=True)
    async with backend_on(socket_folder, vocabulary, engine) as backend:
        heard = await hear(backend, ask(), is_inline=True)
    assert heard.failure is not None
    assert heard.failure.reason == pb.ERROR_REASON_PROTOCOL_VIOLATION
    assert heard.text() == "a"


@pytest.mark.parametrize("is_inline", [True, False])
async def test_an_engine_that_is_wrong_about_its_tokens_is_told_once_per_request_and_kind(
    hostile_engine, vocabulary, caplog, is_inline
):
    secret = [tokens(b"a", text="sec"), tokens(b"b", 1, text="ret"), terminal(b"c", 2, pb.FINISH_REASON_EOS)]
    scripts = {"rude\nid": secret, "other": secret}
    engine = await hostile_engine(scripts=scripts)
    async with EngineClient(engine.target) as client:
        backend = Backend(client, vocabulary, validate_engine_decode=True)
        with caplog.at_level(logging.WARNING):
            heard = await hear(backend, ask(), request_id="rude\nid", is_inline=is_inline)
            assert heard.text() == "abc"
            await hear(backend, ask(), request_id="other")
            await hear(backend, ask(), request_id="good")
    assert caplog.messages == [
        f"request {request!r}: the engine's {what}"
        for request in scripts
        for what in (
            "text is not what its token ids say, within its first 1 tokens",
            "finish reason is EOS where its token ids say UNSPECIFIED",
        )
    ]
    assert backend.activity.totals.engine_differences == {"text": 2, "finish_reason": 2}


async def test_without_validation_nothing_is_compared(hostile_engine, vocabulary, caplog):
    engine: HostileEngine = await hostile_engine(
        info=engine_info(), scripts={"r": [terminal(b"a", 0, pb.FINISH_REASON_EOS, text="x")]}
    )
    async with EngineClient(engine.target) as client:
        backend = Backend(client, vocabulary)
        assert (await hear(backend, ask(), request_id="r")).text() == "a"
    assert not caplog.messages
    assert backend.activity.totals.engine_differences == {"text": 0, "finish_reason": 0}

"""The fuzzer reaches every field, sees what is wrong, and makes it small; and a few cases of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from enginewire import v1 as pb
from tests.fuzz.__main__ import FINDINGS, Fuzz, Target
from tests.fuzz.messages import changed, leaves, tells_too_much
from tests.fuzz.rpcs import GOOD, made_again, rpcs
from tests.fuzz.servers import Servers
from tests.long import examples, long


def test_every_rpc_of_every_server_is_tried() -> None:
    names = [(rpc.server, rpc.name) for rpc in rpcs()]
    assert len(names) == len(set(names)) >= 50
    assert {"EngineService.Generate", "BackendService.Embed", "Health.Watch", "VllmEngine.Abort"} <= {
        n for _, n in names
    }
    assert GOOD.keys() <= {name for _, name in names}


def test_every_field_is_reached() -> None:
    paths = {repr(leaf) for leaf in leaves(pb.GenerateRequest.DESCRIPTOR)}
    assert {
        "request_id",
        "request.sampling_options.top_p",
        "request.resume.choices.generated_token_ids",
    } <= paths


@settings(max_examples=examples(100))
@given(changed(GOOD["EngineService.Generate"]))
def test_whatever_is_drawn_is_a_message(message: pb.GenerateRequest) -> None:
    assert type(message).FromString(message.SerializeToString()).SerializeToString() is not None


class Unharmed:
    are_alive = True


@pytest.mark.parametrize("finding", FINDINGS[:2])
def test_a_finding_is_counted_once_and_printed_as_small_as_it_gets(finding, capsys) -> None:
    fuzz = Fuzz(Unharmed())

    def send(server: str, case: int) -> tuple[str, str]:
        return (finding, "why") if server == "second" and case > 1000 else ("", "OK")

    fuzz.try_target(Target("one", ["first", "second"], st.integers(), send), 200, 1)
    assert fuzz.counts == {finding: 1}
    assert capsys.readouterr().out == f"FOUND {finding} at one of second: why\n  1001\n"


def test_a_call_that_was_printed_can_be_made_again() -> None:
    call = made_again("engine EngineService.Abort 0a0172")
    assert pb.AbortRequest.FromString(call.requests[0]).request_ids == ["r"]
    assert call.rpc.path == "/enginewire.v1.EngineService/Abort"


@pytest.mark.parametrize(
    "text",
    ["Traceback (most", "<class 'ValueError'>", "at 0x7f00aa11bb22", "/x/enginewire/server/a", "File a.py"],
)
def test_what_shows_more_of_us_than_callers_need_is_seen(text: str) -> None:
    assert tells_too_much(text)
    assert not tells_too_much("request.token_ids[0]: must be below 258, got 300")


@long
def test_a_few_cases_find_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="ew-") as folder, Servers(Path(folder)) as servers:
        fuzz = Fuzz(servers)
        fuzz.run(200, 1, "")
        assert {name: fuzz.counts[name] for name in FINDINGS} == dict.fromkeys(FINDINGS, 0), (
            capsys.readouterr().out
        )
        assert fuzz.counts["cases"] >= 200
        assert servers.are_alive

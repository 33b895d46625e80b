"""The table of requests, whoever sent them, while they live and after."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx2
from playwright.sync_api import expect
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from tests.backend.our_processes import until
from tests.browser.conftest import SLOW, OpenPage, Serve, ServeFaces, ask

LONG = "for ever and ever " * 40
COUNTS = (7, 77, 777, 3777)
AGES = (0.4, 9.9, 61.5, 3700.0)
# Notes at every change what the first row counts, left edge and width of each of its cells, and its height.
WATCH_PLACES = """
  window.places = [];
  new MutationObserver(() => {
    const row = document.querySelector("#rows tr");
    if (!row) return;
    const count = row.querySelector("td.tokens > span").textContent;
    if (places.length && places.at(-1)[0] === count) return;
    const boxes = [row, ...row.querySelectorAll("td")].map((each) => each.getBoundingClientRect());
    places.push([count, boxes.map((box) => [box.left, box.width, box.height])]);
  }).observe(document, { subtree: true, childList: true, characterData: true });
"""


def test_an_abort_ends_the_request_and_its_row_goes(serve: Serve, open_page: OpenPage) -> None:
    address = serve(SLOW)
    page = open_page(address)
    ask(page, LONG, max_tokens=4000)
    row = page.locator("#rows tr")
    expect(row).to_have_count(1)
    expect(row.locator(".phase-name")).to_have_text("decode")
    expect(row.locator("td").nth(3)).to_have_text(str(len(LONG)))
    expect(page.locator(".grid .used")).not_to_have_count(0)
    row.get_by_role("button").click()
    expect(row).to_have_count(0)
    expect(page.locator(".outcome")).to_contain_text("aborted over HTTP")
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator(".grid .used")).to_have_count(0)
    expect(page.locator("#ended .phase-name")).to_have_text(["cancelled"])
    until(lambda: not httpx2.get(f"{address}/enginewire/status").json()["engines"][0]["running"])


def test_requests_of_other_callers_are_shown_and_can_be_aborted(serve: Serve, open_page: OpenPage) -> None:
    address = serve("--mocker-itl-ms 25 --max-num-seqs 1")
    page = open_page(address)
    body = {"prompt": "x" * 40, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with (
        httpx2.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as first,
        httpx2.Client() as client,
    ):
        assert first.status_code == 200
        expect(page.locator("#rows tr")).to_have_count(1)
        ask(page, "second " * 60, max_tokens=4000)
        expect(page.locator("#rows .phase-name")).to_have_text(["decode", "waiting"])
        expect(page.locator(".counts")).to_contain_text("1 waiting")
        page.locator("#rows tr").first.get_by_role("button").click()
        expect(page.locator("#rows .phase-name")).to_have_text(["decode"])
        assert b'"code":"cancelled"' in b"".join(first.iter_bytes())
        assert client.get(f"{address}/metrics").status_code == 200


def test_requests_of_every_face_are_shown_with_how_they_ended(
    serve_faces: ServeFaces, open_page: OpenPage
) -> None:
    faces = serve_faces("--engine mocker", "--smg-port", "0")
    page = open_page(faces["http"])
    expect(page.locator("#requests")).to_be_hidden()
    with grpc.insecure_channel(faces["unix"]) as channel:
        asked = pb.BackendServiceGenerateRequest(text="abcd")
        asked.request.stop_conditions.max_tokens = 3
        assert list(pb.BackendServiceStub(channel).Generate(asked, timeout=60))
    with grpc.insecure_channel(faces["grpc"].removeprefix("grpc://")) as channel:
        tokens = vllm.TokenizedInput(input_ids=list(b"xyz"))
        sampling = vllm.SamplingParams(max_tokens=50)
        request = vllm.GenerateRequest(request_id="of-smg", tokenized=tokens, sampling_params=sampling)
        assert list(vllm_engine_pb2_grpc.VllmEngineStub(channel).Generate(request, timeout=60))
    httpx2.post(f"{faces['http']}/v1/completions", json={"prompt": "x", "top_p": 7}, timeout=60)
    expect(page.locator("#ended td.face")).to_have_text(["HTTP", "SMG", "gRPC"])
    expect(page.locator("#ended .phase-name")).to_have_text(["invalid_request", "stop", "length"])
    expect(page.locator("#ended td.tokens > span:first-child")).to_have_text(["0", "4", "3"])
    expect(page.locator("#ended td.id").nth(1)).to_have_text("of-smg")
    expect(page.locator("#empty")).to_be_visible()


def test_of_many_requests_the_oldest_are_shown(serve: Serve, open_page: OpenPage) -> None:
    address = serve("--mocker-itl-ms 50 --max-num-seqs 300")
    page = open_page(address)
    body = {"prompt": ["z" * 30] * 250, "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        expect(page.locator("#more")).to_have_text("the oldest 200 of 250 at work")
        expect(page.locator("#rows tr")).to_have_count(200)
    expect(page.locator("#rows tr")).to_have_count(0)
    expect(page.locator("#ended tr")).to_have_count(20)
    expect(page.locator("#ended .phase-name").first).to_have_text("abort")


def test_rows_stay_where_they_are_while_their_numbers_grow(serve: Serve, open_page: OpenPage) -> None:
    address = serve(SLOW)
    page = open_page(address)
    body = {"prompt": "x" * 3000, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        expect(page.locator("#rows tr")).to_have_count(1)
        state = httpx2.get(f"{address}/enginewire/status").json()
        page.add_init_script(WATCH_PLACES)
        bodies = [grown(state)]
        # Who asks again, once that has ended, waits.
        page.route(
            "**/enginewire/events",
            lambda route: bodies and route.fulfill(content_type="text/event-stream", body=bodies.pop()),
        )
        page.reload()
        expect(page.locator("#rows td.tokens > span:first-child")).to_have_text("3,777 / 4,000")
    seen = page.evaluate("places")
    assert [tokens for tokens, _ in seen] == ["7 / 4,000", "77 / 4,000", "777 / 4,000", "3,777 / 4,000"]
    assert len({str(place) for _, place in seen}) == 1


def grown(state: dict[str, Any]) -> str:
    """The events of a request whose count has one figure, then two, three and four, one behind the other."""
    first = state["requests"][0]
    rows = [{**first, "tokens": tokens, "age": age} for tokens, age in zip(COUNTS, AGES, strict=True)]
    events = (json.dumps({**state, "requests": [row]}) for row in rows)
    return "".join(f"data: {event}\n\n" for event in events)


def test_the_engine_is_never_idle_beside_requests_it_answers(serve: Serve, open_page: OpenPage) -> None:
    address = serve("--mocker-itl-ms 10")
    page = open_page(address)
    page.evaluate(
        """() => {
          window.faults = [];
          window.most = 0;
          new MutationObserver(() => {
            const decoding = document.querySelectorAll('#rows [data-phase="decode"]').length;
            const running = Number(document.querySelector(".counts .running b").textContent);
            const blocks = Number(document.querySelector(".counts .blocks b").textContent.replace(",", ""));
            window.most = Math.max(most, decoding);
            if (decoding > running || (decoding && !blocks)) faults.push([decoding, running, blocks]);
          }).observe(document.querySelector("#rows"), { subtree: true, childList: true, attributes: true });
        }"""
    )
    body = {"prompt": ["y" * 30] * 15, "max_tokens": 60, "ignore_eos": True}
    for _ in range(5):
        assert httpx2.post(f"{address}/v1/completions", json=body, timeout=60).status_code == 200
    expect(page.locator("#rows tr")).to_have_count(0)
    assert page.evaluate("most") > 0, "nothing was seen"
    assert page.evaluate("faults") == []

"""One trace from a caller through a backend to an engine: real processes, and a collector that takes OTLP."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm, vllm_engine_pb2_grpc as smg

from enginewire import v1 as pb
from tests.backend.our_processes import command, load_of, running, until
from tests.end_to_end.processes import EngineProcess
from tests.long import long_but
from tests.otlp_collector import Collector, Found, collecting
from tests.patience import PATIENCE_SECONDS

CALLER = "b7ad6b7169203331"
PROMPT = "a prompt that nobody but the engine shall see"
WAYS = pytest.mark.parametrize("way", long_but(["multiplexed"], ["multiplexed", "per request"]))
FACES = pytest.mark.parametrize("face", ["HTTP", "gRPC"])
TREE = {
    "backend.generate": CALLER,
    "backend.attempt": "backend.generate",
    "engine.generate": "backend.attempt",
    "engine.queue": "engine.generate",
    "engine.prefill": "engine.generate",
    "engine.decode": "engine.generate",
}


@dataclass(frozen=True)
class Face:
    """Where one backend listens."""

    grpc: str
    http: str
    smg: str


@dataclass(frozen=True)
class Stack:
    """An engine, and two backends that reach it in two ways."""

    engine: str
    backends: dict[str, Face]
    collector: Collector


@contextlib.contextmanager
def backend(folder: Path, collector: Collector, name: str, *arguments: str) -> Iterator[Face]:
    """A backend process whose spans are collected."""
    faces = [f"--uds={folder}/{name}.sock", "--http-port=0", "--smg-port=0"]
    traced = f"--otlp-traces-endpoint={collector.endpoint}"
    with running(command("serve", *arguments, *faces, traced), stderr=subprocess.PIPE) as process:
        found = [_address(process.stderr.readline()) for _ in range(3)]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield Face(*found)


def _address(line: bytes) -> str:
    assert line.startswith(b"listening on "), line
    return line.decode().removeprefix("listening on ").strip()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with (
        pytest.MonkeyPatch.context() as environment,
        tempfile.TemporaryDirectory(prefix="ew-") as place,
        collecting() as collector,
        contextlib.ExitStack() as backends,
    ):
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        folder = Path(place)
        uds, paces = f"--uds={folder}/engine.sock", ("--mocker-ttft-ms=5", "--mocker-itl-ms=2")
        engine = EngineProcess(folder, uds, *paces, f"--otlp-traces-endpoint={collector.endpoint}")
        backends.callback(engine.end)
        faces = {
            way: backends.enter_context(
                backend(folder, collector, way[0], f"--target=unix:{folder}/engine.sock", how)
            )
            for way, how in (("multiplexed", "--multiplexed"), ("per request", "--no-multiplexed"))
        }
        yield Stack(f"unix:{folder}/engine.sock", faces, collector)


class Caller:
    """A caller with a trace of its own."""

    def __init__(self) -> None:
        self.trace_id = uuid.uuid4().hex
        self.headers = {"traceparent": f"00-{self.trace_id}-{CALLER}-01", "tracestate": "kit=1"}

    def over_http(self, address: str, **asked: object) -> tuple[int, str]:
        """The status and the body of a completion."""
        body = json.dumps({"prompt": PROMPT, "max_tokens": 4, **asked}).encode()
        headers = {"content-type": "application/json", **self.headers}
        request = urllib.request.Request(f"{address}/v1/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.request.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def over_grpc(self, target: str, n: int = 1, max_tokens: int = 4, temperature: float = 0.0) -> object:
        """The status of a call of BackendService."""
        asked = pb.BackendServiceGenerateRequest(text=PROMPT)
        asked.request.stop_conditions.max_tokens = max_tokens
        asked.request.sampling_options.MergeFrom(pb.SamplingOptions(n=n, temperature=temperature))
        with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = pb.BackendServiceStub(channel).Generate(asked, metadata=tuple(self.headers.items()))
            with contextlib.suppress(grpc.RpcError):
                for _ in call:
                    pass
            return call.code()

    def ask(self, face: Face, way: str, **asked: object) -> None:
        """By one of the faces."""
        if way == "HTTP":
            self.over_http(face.http, **asked)
        else:
            self.over_grpc(face.grpc, **asked)


def whole(spans: list[Found], num_requests: int = 1) -> bool:
    """The caller's request has ended in backend and engine."""
    names = [span.name for span in spans]
    return all(names.count(name) == num_requests for name in ("backend.generate", "engine.generate"))


def tree(spans: list[Found]) -> dict[str, str]:
    """Each span's name with that of its parent."""
    names = {span.span_id: span.name for span in spans}
    assert len(set(names.values())) == len(spans)
    return {span.name: names.get(span.parent_id, span.parent_id) for span in spans}


def named(spans: list[Found]) -> dict[str, Found]:
    return {span.name: span for span in spans}


@WAYS
@FACES
@pytest.mark.parametrize("n", [1, 2])
def test_a_request_is_one_trace_with_the_caller_on_top(stack: Stack, way: str, face: str, n: int) -> None:
    caller = Caller()
    caller.ask(stack.backends[way], face, n=n)
    spans = stack.collector.wait(caller.trace_id, whole)
    assert tree(spans) == TREE
    found = named(spans)
    parts = [found[f"engine.{part}"] for part in ("queue", "prefill", "decode")]
    assert [each.service for each in parts] == ["enginewire-engine"] * 3
    assert parts[0].end <= parts[1].begin + 1000
    assert parts[1].end - parts[1].begin >= 4_000_000  # the engine takes 5 ms for its first token
    for name in ("backend.generate", "engine.generate"):
        attributes = found[name].attributes
        assert attributes["gen_ai.usage.output_tokens"] == 4 * n
        assert attributes.get("gen_ai.request.choice.count", 1) == n
        assert set(attributes["gen_ai.response.finish_reasons"]) == {"length"}
    assert found["backend.generate"].attributes["enginewire.face"] == face
    assert found["backend.attempt"].attributes["server.address"] == stack.engine.removeprefix("unix:")
    assert {span.span.trace_state for span in spans} == {"kit=1"}
    assert PROMPT not in str([span.span for span in spans])


@FACES
def test_a_refused_request_is_an_error_at_every_level(stack: Stack, face: str) -> None:
    caller = Caller()
    caller.ask(stack.backends["multiplexed"], face, temperature=-1.0)
    spans = stack.collector.wait(caller.trace_id, whole)
    assert tree(spans) == {name: TREE[name] for name in list(TREE)[:3]}
    assert {span.attributes["error.type"] for span in spans} == {"invalid_request"}
    assert {span.span.status.code for span in spans} == {2}


@WAYS
def test_a_request_that_its_caller_leaves_ends_in_every_span(stack: Stack, way: str) -> None:
    caller, face = Caller(), stack.backends[way]
    connection = http.client.HTTPConnection(face.http.removeprefix("http://"), timeout=PATIENCE_SECONDS)
    with contextlib.closing(connection):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 400, "stream": True})
        connection.request(
            "POST", "/v1/completions", body, {"content-type": "application/json", **caller.headers}
        )
        connection.getresponse().read(1)
    spans = stack.collector.wait(caller.trace_id, whole)
    assert tree(spans) == TREE
    reasons = [named(spans)[name].attributes for name in ("backend.generate", "engine.generate")]
    assert [each["gen_ai.response.finish_reasons"] for each in reasons] == [["abort"], ["abort"]]


def test_a_worker_of_smg_passes_the_trace_on(stack: Stack) -> None:
    caller = Caller()
    asked = vllm.GenerateRequest(
        request_id=caller.trace_id,
        tokenized=vllm.TokenizedInput(input_ids=[1, 2, 3]),
        sampling_params=vllm.SamplingParams(max_tokens=4),
    )
    with grpc.insecure_channel(stack.backends["multiplexed"].smg.removeprefix("grpc://")) as channel:
        list(smg.VllmEngineStub(channel).Generate(asked, metadata=tuple(caller.headers.items())))
    spans = stack.collector.wait(caller.trace_id, whole)
    assert tree(spans) == TREE
    assert named(spans)["backend.generate"].attributes["enginewire.face"] == "SMG"


def test_each_prompt_of_a_call_has_spans_of_its_own(stack: Stack) -> None:
    caller = Caller()
    caller.over_http(stack.backends["multiplexed"].http, prompt=["one", "two"])
    spans = stack.collector.wait(caller.trace_id, lambda found: whole(found, 2))
    parents = {span.span_id: span.parent_id for span in spans}
    tops = [span.span_id for span in spans if span.name == "backend.generate"]
    attempts = [span.span_id for span in spans if span.name == "backend.attempt"]
    assert [parents[top] for top in tops] == [CALLER] * 2
    assert sorted(parents[attempt] for attempt in attempts) == sorted(tops)


@pytest.mark.parametrize("traceparent", ["garbage", f"00-{'0' * 32}-{CALLER}-01", ""])
def test_a_malformed_trace_is_not_followed_and_refuses_nothing(stack: Stack, traceparent: str) -> None:
    caller = Caller()
    caller.headers = {"traceparent": traceparent}
    assert caller.over_http(stack.backends["multiplexed"].http)[0] == 200


def test_embeddings_are_traced_too(stack: Stack) -> None:
    caller = Caller()
    asked = pb.BackendServiceEmbedRequest(inputs=[pb.EmbeddingInput(text="one")])
    with grpc.insecure_channel(stack.backends["multiplexed"].grpc) as channel:
        pb.BackendServiceStub(channel).Embed(asked, metadata=tuple(caller.headers.items()))
    spans = stack.collector.wait(
        caller.trace_id, lambda found: {"backend.embed", "engine.embed"} <= {*named(found)}
    )
    parents = tree(spans)
    assert parents["backend.embed"] == CALLER
    assert (parents["backend.attempt"], parents["engine.embed"]) == ("backend.embed", "backend.attempt")


@WAYS
def test_a_request_that_goes_on_at_another_engine_is_linked_to_where_it_was(
    stack: Stack, folder: Path, way: str, launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = stack.collector
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    arguments = ("--mocker-itl-ms=20", "--shutdown-timeout=0", f"--otlp-traces-endpoint={collector.endpoint}")
    engines = {
        f"unix:{folder}/{name}.sock": launch("--uds", f"{folder}/{name}.sock", *arguments) for name in "ab"
    }
    targets = [f"--target={target}" for target in engines]
    how = "--multiplexed" if way == "multiplexed" else "--no-multiplexed"
    caller = Caller()
    for engine in engines.values():
        engine.target()
    with backend(folder, collector, "r", *targets, how) as face:
        asking = threading.Thread(target=caller.over_grpc, args=(face.grpc,), kwargs={"max_tokens": 200})
        asking.start()
        until(lambda: any(load_of(target).running for target in engines))
        (busy,) = (target for target in engines if load_of(target).running)
        engines[busy].signal(signal.SIGTERM)
        asking.join()
        spans = collector.wait(
            caller.trace_id, lambda found: [s.name for s in found].count("engine.generate") == 2
        )
        collector.wait(caller.trace_id, lambda found: "backend.generate" in named(found))
    assert engines[busy].exit_code() == 0
    spans = collector.of(caller.trace_id)
    first, second = (span for span in spans if span.name == "backend.attempt")
    assert first.attributes["server.address"] == busy.removeprefix("unix:")
    assert (first.links, second.links) == ([], [first.span_id])
    (top,) = (span for span in spans if span.name == "backend.generate")
    assert (first.parent_id, second.parent_id, top.parent_id) == (top.span_id, top.span_id, CALLER)
    lost, other = (span for span in spans if span.name == "engine.generate")
    assert (lost.parent_id, other.parent_id) == (first.span_id, second.span_id)
    assert (lost.links, other.links) == ([], [first.span_id])
    # The mocker repeats the prompt, and ends.
    assert top.attributes["gen_ai.usage.output_tokens"] == len(PROMPT) + 1

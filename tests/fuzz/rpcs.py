"""Every RPC that is served, as its descriptor has it, and what comes of calling one with any bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import grpc
from google.protobuf import text_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from enginewire.v1 import revision
from tests.fuzz.messages import changed, raw
from tests.patience import PATIENCE_SECONDS

# How long a stream that may never say anything is listened to.
GLANCE_SECONDS = 0.02
MOST_MESSAGES = 4
# They end the work of a server, so they are tried where that is no harm.
ENDING = ("Drain", "Cleanup")
WATCHES = ("WatchLoad", "Watch", "SubscribeKvEvents", "Drain")
PROMPT = pb.PreprocessedRequest(token_ids=[1, 2, 3], stop_conditions={"max_tokens": 4})
GOOD: dict[str, Message] = {
    "EngineService.Generate": pb.GenerateRequest(request_id="r", request=PROMPT),
    "EngineService.GenerateMultiplexed": pb.GenerateMultiplexedRequest(
        submits=[pb.Submit(handle=1, generate=pb.GenerateRequest(request_id="m", request=PROMPT))]
    ),
    "EngineService.Abort": pb.AbortRequest(request_ids=["r"]),
    "EmbeddingService.Embed": pb.EmbedRequest(request_id="e", request={"token_ids": [{"token_ids": [1, 2]}]}),
    "BackendService.Generate": pb.BackendServiceGenerateRequest(
        text="hello", request={"stop_conditions": {"max_tokens": 4}}
    ),
    "BackendService.Embed": pb.BackendServiceEmbedRequest(inputs=[{"text": "hello"}]),
    "VllmEngine.Generate": vllm.GenerateRequest(
        request_id="s", tokenized={"input_ids": [1, 2, 3]}, sampling_params={"max_tokens": 4}
    ),
}
METADATA = (
    ("traceparent", "00-" + "g" * 32 + "-1-1"),
    ("traceparent", ""),
    ("tracestate", "x" * 10_000),
    ("baggage", ",".join(f"k{i}=v" for i in range(500))),
    ("authorization", "Bearer x"),
    ("x-a", "~"),
    ("enginewire-priority", "x"),
    ("enginewire-dp-rank", "-1"),
    ("enginewire-routing-key", "é".encode().hex()),
    ("grpc-timeout-like", "99999999H"),
    ("x-bin", b"\xff\x00"),
    ("grpc-encoding", "nonsense"),
    ("te", "x"),
)


@dataclass(frozen=True, slots=True)
class Rpc:
    """One method at one server."""

    server: str
    method: MethodDescriptor

    @property
    def name(self) -> str:
        """As in `EngineService.Generate`."""
        return f"{self.method.containing_service.name}.{self.method.name}"

    @property
    def path(self) -> str:
        """On the wire."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    @property
    def good(self) -> Message:
        """A request to begin with."""
        return GOOD.get(self.name) or GetMessageClass(self.method.input_type)()


@dataclass(frozen=True)
class Call:
    """One call: what is sent, and what went with it. Shown so that it can be made again."""

    rpc: Rpc
    requests: Sequence[bytes]
    metadata: Sequence[tuple[str, str | bytes]] = ()
    shown: Sequence[Message] = field(default=(), compare=False)

    def at(self, server: str) -> Call:
        """The same call at another server that has this RPC."""
        return replace(self, rpc=replace(self.rpc, server=server))

    def __repr__(self) -> str:
        text = "; ".join(text_format.MessageToString(m, as_one_line=True)[:1000] for m in self.shown)
        sent = " ".join(request.hex() for request in self.requests)
        again = f"--again '{self.rpc.server} {self.rpc.name} {sent}'" if len(sent) < 4000 else ""
        return f"<{self.rpc.name} at {self.rpc.server}: {text} metadata={list(self.metadata)} {again}>"


def rpcs() -> Iterator[Rpc]:
    """All there are. Those of engines also at one that is `ending`: drained or cleaned up at any moment."""
    for file in revision.FILES:
        for service in file.services_by_name.values():
            for method in service.methods:
                servers = ("backend",) if service.name == "BackendService" else ("engine", "ending")
                yield from (
                    Rpc(server, method)
                    for server in servers
                    if server == "ending" or method.name not in ENDING
                )
    health = health_pb2.DESCRIPTOR.services_by_name["Health"]
    yield from (Rpc(server, method) for server in ("engine", "backend", "smg") for method in health.methods)
    yield from (Rpc("smg", method) for method in vllm.DESCRIPTOR.services_by_name["VllmEngine"].methods)


def calls(rpc: Rpc) -> st.SearchStrategy[Call]:
    """Valid and invalid messages, bytes that are none, and metadata that nobody asked for."""
    metadata = st.lists(st.sampled_from(METADATA), max_size=2)
    most = 3 if rpc.method.client_streaming else 1
    least = 0 if rpc.method.client_streaming else 1
    several = st.lists(changed(rpc.good), min_size=least, max_size=most)
    made = st.builds(
        lambda messages, pairs: Call(rpc, [m.SerializeToString() for m in messages], pairs, messages),
        several,
        st.one_of(st.just([]), metadata),
    )
    bare = st.lists(raw(rpc.good), min_size=1, max_size=most).map(lambda data: Call(rpc, data))
    return st.one_of(made, made, made, bare)


def made_again(words: str) -> Call:
    """The call that `--again` names."""
    server, name, *sent = words.split(" ")
    rpc = next(each for each in rpcs() if (each.server, each.name) == (server, name))
    return Call(rpc, [bytes.fromhex(request) for request in sent])


def code_of(channel: grpc.Channel, call: Call) -> tuple[grpc.StatusCode, str]:
    """The status of the call, OK for one that was left after a few messages."""
    watches = call.rpc.method.name in WATCHES
    timeout = GLANCE_SECONDS if watches else PATIENCE_SECONDS
    try:
        if call.rpc.method.client_streaming:
            stream = channel.stream_stream(call.rpc.path)(iter(call.requests), timeout, call.metadata)
        else:
            stream = channel.unary_stream(call.rpc.path)(call.requests[0], timeout, call.metadata)
        for _ in itertools.islice(stream, MOST_MESSAGES):
            pass
        if stream.is_active():
            stream.cancel()
    except grpc.RpcError as error:
        if watches and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return grpc.StatusCode.OK, ""
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""

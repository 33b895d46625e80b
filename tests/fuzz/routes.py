"""Every HTTP route with bodies that are good, nearly good, or nothing of the kind; headers of every sort."""

from __future__ import annotations

import copy
import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.backend.frontends.http_api import published_fields
from tests.fuzz.messages import ANY_TEXT, BYTES, CONTEXT, TEXTS, VOCABULARY, spoiled, tells_too_much
from tests.patience import PATIENCE_SECONDS

MOST_BYTES = 4096
# Not a fault of ours: an engine that takes nothing, and a route without its `--option`.
EXPECTED = frozenset({501, 503, 504})
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]}]
TOOL = {
    "name": "f",
    "description": "d",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}
FIELDS = tuple(
    sorted(
        {
            word
            for name, value in vars(published_fields).items()
            if name.isupper()
            for word in str(value).split()
        }
    )
)


@dataclass(frozen=True, slots=True)
class Route:
    """Where, and a body to begin with."""

    method: str
    path: str
    body: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent."""

    method: str
    path: str
    body: bytes
    headers: Sequence[tuple[str, str]] = ()

    def __repr__(self) -> str:
        return f"<{self.method} {self.path} headers={list(self.headers)} body={self.body[:2000]!r}>"


ROUTES = (
    Route("POST", "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4, "stream": True, "n": 1}),
    Route(
        "POST",
        "/v1/chat/completions",
        {
            "messages": MESSAGES,
            "max_tokens": 4,
            "tools": [{"type": "function", "function": TOOL}],
            "tool_choice": "auto",
        },
    ),
    Route("POST", "/v1/completions", {"prompt": "hello", "max_tokens": 4, "logprobs": 1, "stop": ["x"]}),
    Route(
        "POST",
        "/v1/responses",
        {"input": "hello", "max_output_tokens": 4, "text": {"format": {"type": "text"}}},
    ),
    Route("POST", "/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}),
    Route("POST", "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]}),
    Route("POST", "/v1/embeddings", {"input": ["hello", "you"], "encoding_format": "float"}),
    Route("POST", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "a"}),
    Route("POST", "/v1/unload_lora_adapter", {"lora_name": "a"}),
    Route("POST", "/tokenize", {"prompt": "hello", "add_special_tokens": True}),
    Route("POST", "/detokenize", {"tokens": [65, 66]}),
    Route("POST", "/enginewire/generate", {"prompt": "hello", "max_tokens": 4}),
    Route("POST", "/enginewire/abort", {"request_id": "x"}),
    *(
        Route("GET", path)
        for path in (
            "/v1/models",
            "/v1/models/mocker",
            "/health",
            "/version",
            "/metrics",
            "/",
            "/enginewire/status",
            "/enginewire/about",
            "/page/x",
        )
    ),
)
NUMBERS = (0, -1, 1, 2, 0.5, 1e308, -0.0, 2**31, 2**32, 2**63, 2**64, 10**40, VOCABULARY, CONTEXT, 1e-320)
SMALL = (None, True, False, "", [], {}, [None], [[]], {"": ""}, [[1, 2]], *NUMBERS, *TEXTS)
DEEP = ("[" * 2000 + "]" * 2000, '{"a":' * 500 + "1" + "}" * 500)
HEADERS = (
    ("content-type", "text/plain"),
    ("content-type", "application/json; charset=utf-16"),
    ("content-encoding", "gzip"),
    ("x-request-id", "x" * 3000),
    ("authorization", "Bearer x"),
    ("x-api-key", "x"),
    ("expect", "100-continue"),
    ("origin", "http://evil.example"),
    ("host", "evil.example"),
    ("traceparent", "00-zz"),
    ("tracestate", "x" * 3000),
    ("accept", "text/event-stream"),
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("transfer-encoding", "x"),
)


def requests(route: Route) -> st.SearchStrategy[Request]:
    """To this route, or to something beside it."""
    headers = st.lists(st.sampled_from(HEADERS), max_size=2)
    tails = (*[""] * 30, "?a=b", "/", "/../../etc/passwd", "%00", "/" + "x" * 3000, "?" + "a=b&" * 500)
    paths = st.sampled_from(tails).map(lambda tail: route.path + tail)
    bodies = _bodies(route.body) if route.body else st.sampled_from((b"", b"{}"))
    return st.builds(Request, st.just(route.method), paths, bodies, st.one_of(st.just([]), headers))


def _bodies(base: Mapping[str, object]) -> st.SearchStrategy[bytes]:
    change = st.tuples(
        st.lists(st.integers(0, 30), min_size=1, max_size=4), st.sampled_from(FIELDS), _values()
    )
    texts = st.lists(change, max_size=4).map(lambda changes: json.dumps(_changed(base, changes)).encode())
    return st.one_of(
        texts, texts, texts, texts.flatmap(spoiled), st.sampled_from([*BYTES, *map(str.encode, DEEP)])
    )


def _values() -> st.SearchStrategy[object]:
    leaf = st.one_of(st.sampled_from(SMALL), st.integers(), st.floats(), ANY_TEXT)
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)
        ),
        max_leaves=6,
    )


def _changed(base: Mapping[str, object], changes: Sequence[tuple[list[int], str, object]]) -> object:
    """Somewhere in it a value is another one, is gone, or a published field has come."""
    document: object = copy.deepcopy(dict(base))
    for steps, name, value in changes:
        owner = document
        for step in steps[:-1]:
            inner = list(owner.values()) if isinstance(owner, dict) else owner
            inner = [each for each in inner if isinstance(each, dict | list)]
            if not inner:
                break
            owner = inner[step % len(inner)]
        _change(owner, steps[-1], name, copy.deepcopy(value))
    return document


def _change(owner: object, step: int, name: str, value: object) -> None:
    keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
    if step % 3 == 0 and keys:
        owner[keys[step % len(keys)]] = value
    elif step % 7 == 1 and keys:
        del owner[keys[step % len(keys)]]
    elif isinstance(owner, dict):
        owner[name] = value
    else:
        owner.append(value)


def send(address: str, request: Request) -> tuple[str, str]:
    """What is wrong with the answer: nothing, or `internal` and why."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
    # What http.client itself would not send is not for here, but for the bytes at the ports.
    connection._validate_path = lambda path: None
    try:
        connection.putrequest(request.method, request.path, skip_host="host" in dict(request.headers))
        for name, value in request.headers:
            connection.putheader(name, value)
        if "content-type" not in dict(request.headers):
            connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(len(request.body)))
        connection.endheaders(request.body)
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES)
    except TimeoutError:
        return "internal", "hangs"
    except (OSError, http.client.HTTPException):
        return "", "hung up"  # as it may on what is no HTTP
    finally:
        connection.close()
    if answer.status >= 500 and answer.status not in EXPECTED:
        return "internal", f"{answer.status}: {body[:500]!r}"
    if b'"code":"internal"' in body or tells_too_much(body.decode(errors="replace")):
        return "internal", f"{answer.status}: {body[:500]!r}"
    return "", str(answer.status)

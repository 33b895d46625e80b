"""The tables that compare this server with vLLM's, each cell asked of a real server.

That of embeddings is asked in embeddings/test_embeddings_process.py, where the one that embeds is started.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from enginewire.server import demo_model
from tests.backend.frontends.http_api.published_fields import FIELDS, IN_VLLM
from tests.backend.frontends.http_api.test_fields import FACES, SCHEMA, beside_of
from tests.backend.frontends.http_api.test_process import address_in
from tests.repository import ROOT

PAGE = (ROOT / "docs" / "http.md").read_text()
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
}
BASE: dict[str, dict[str, object]] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0},
    "completions": {"prompt": "Hi", "max_tokens": 4, "temperature": 0},
    "responses": {"input": "Hi", "max_output_tokens": 4, "temperature": 0},
    "embeddings": {"input": "Hi"},
}
# Samples that must be more than well formed once an engine reads them.
REAL: dict[str, object] = {
    "allowed_token_ids": [70, 71],
    "guided_grammar": 'root ::= "a"',
    # Another one needs beam search.
    "length_penalty": 1,
    "response_format": SCHEMA,
    "stop_token_ids": [70],
}
# A template that reads whatever it is given.
TEMPLATE = (
    "{# <tool_call> tool_calls role tool #}{% if tools %}{{ tools }}{% endif %}{{ a }}{{ reasoning_effort }}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ROUTE_BODIES: dict[str, tuple[dict[str, object], int]] = {
    **{f"POST {path}": (BASE[face], 200) for face, path in PATHS.items()},
    "POST /v1/messages": ({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}, 200),
    "POST /v1/messages/count_tokens": ({"messages": [{"role": "user", "content": "Hi"}]}, 200),
    "POST /tokenize": ({"prompt": "Hi"}, 200),
    "POST /detokenize": ({"tokens": [70]}, 200),
    # The engine is asked, and has no such adapter.
    "POST /v1/load_lora_adapter": ({"lora_name": "a", "lora_path": "none"}, 404),
    "POST /v1/unload_lora_adapter": ({"lora_name": "a"}, 404),
}


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose first column has that name."""
    table = PAGE[PAGE.index(f"| {first} | vLLM |") :].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


@contextmanager
def serving(folder: Path, launch: str, *options: str) -> Iterator[httpx2.Client]:
    """A backend that launches its engine, both in processes of their own."""
    command = [sys.executable, "-m", "enginewire.backend", "serve", "--http-port=0", f"--uds={folder}/b"]
    log = folder / "log"
    with log.open("wb") as stderr:
        backend = subprocess.Popen(
            [*command, f"--launch={launch} --log-level=error", *options], stderr=stderr
        )
    try:
        with httpx2.Client(base_url=address_in(log, backend), timeout=120) as client:
            yield client
    finally:
        backend.terminate()
        backend.wait()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("c")
    tokenizer = folder / "tokenizer"
    shutil.copytree(Path(demo_model.__file__).parent / "weights", tokenizer)
    (tokenizer / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "adapters").mkdir()
    launch = f"builtin:demo --adapter-folder={folder}/adapters"
    with serving(folder, launch, f"--tokenizer={tokenizer}", "--allow-runtime-lora-updating") as client:
        yield client


def said(answer: httpx2.Response) -> object:
    """The part of an answer that is not its id or its time."""
    fields = answer.json()
    if "output" in fields:
        return [item["content"] for item in fields["output"]]
    return fields.get("choices") or fields["data"]


def fault(client: httpx2.Client, face: str, key: str, expected: str) -> str:
    """What is untrue about a cell; "" when nothing is."""
    _, served, refused, without_effect = FACES[face]
    samples = {
        "served": served,
        "refused": refused,
        "no effect": {name: value for name, (value, _) in without_effect.items()},
    }[expected]
    if key not in samples:
        return "has another place in the tests of fields"
    beside = BASE[face] | beside_of(face, key)
    model = client.get("/v1/models").json()["data"][0]["id"]
    value = {"model": model, **REAL}.get(key, samples[key])
    answer = client.post(PATHS[face], json=beside | {key: value})
    if expected == "refused":
        is_named = answer.status_code == 400 and answer.json()["error"]["param"] == key
        return "" if is_named else f"{answer.status_code} {answer.text}"
    if answer.status_code != 200:
        error = answer.json()["error"]
        is_unsupported = (error["param"] or "").startswith(key) and error["code"] == "unsupported"
        return "" if expected == "served" and is_unsupported else f"{answer.status_code} {answer.text}"
    if expected == "no effect" and not beside.get("stream"):
        plain = client.post(PATHS[face], json=beside)
        return "" if said(plain) == said(answer) else "changes the answer"
    return ""


def check(clients: dict[str, httpx2.Client]) -> None:
    """Every cell of these columns."""
    count: Counter[str] = Counter()
    faults = []
    for name, _, *cells in rows("field"):
        key = name.strip("`")
        for face, expected in zip(FACES, cells, strict=False):
            if face in clients and expected != "–":
                count[expected] += 1
                if found := fault(clients[face], face, key, expected):
                    faults.append(f"{face}: {key}: {expected}: {found}")
    print(f"{', '.join(clients)}: {dict(count)}, ignored: {len(faults)}")
    assert not faults, "\n".join(faults)


def test_every_field_that_is_published_has_its_row_and_no_other() -> None:
    table = rows("field")
    assert [row[0].strip("`") for row in table] == sorted(set().union(*FIELDS.values()))
    for name, in_vllm, *cells, why in table:
        key = name.strip("`")
        assert [face for face, cell in zip(FACES, cells, strict=True) if cell != "–"] == [
            face for face, keys in FIELDS.items() if key in keys
        ]
        assert (in_vllm == "yes") == any(key in keys for keys in IN_VLLM.values()), key
        assert bool(why) == bool({"refused", "no effect"} & {*cells}), key


def test_the_count_of_the_fields_of_chat_is_that_of_the_table() -> None:
    count = Counter(row[2] for row in rows("field") if row[0].strip("`") in IN_VLLM["chat"])
    told = re.search(
        r"Of the (\d+) fields that vLLM publishes for chat, (\d+) are served, (\d+) are refused, "
        r"(\d+) have no effect and 0 are ignored",
        PAGE,
    )
    assert told is not None
    served, refused, without_effect = (count[cell] for cell in ("served", "refused", "no effect"))
    assert [*map(int, told.groups())] == [len(IN_VLLM["chat"]), served, refused, without_effect]
    assert served + refused + without_effect == len(IN_VLLM["chat"])


def test_generation_serves_refuses_and_leaves_alone_what_the_table_says(demo: httpx2.Client) -> None:
    check(dict.fromkeys(["chat", "completions", "responses"], demo))


def test_every_route_is_where_the_table_says(demo: httpx2.Client) -> None:
    model = demo.get("/v1/models").json()["data"][0]["id"]
    count: Counter[str] = Counter()
    for names, _, expected, why in rows("route"):
        for method, path in re.findall(r"`(\w+) (\S+)`", names):
            body, status = ROUTE_BODIES.get(f"{method} {path}", (None, 200))
            answer = demo.request(method, path.replace("NAME", model), json=body)
            count[expected] += 1
            assert bool(why) == (expected == "refused"), path
            if expected == "refused":
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "route_not_found"), path
            else:
                assert answer.status_code == status, path
                assert status == 200 or answer.json()["error"]["param"].startswith("lora_"), path
    print(f"routes: {dict(count)}")


def test_a_word_that_is_forbidden_does_not_come(demo: httpx2.Client) -> None:
    asked = BASE["completions"] | {"max_tokens": 12}
    words = demo.post("/v1/completions", json=asked).json()["choices"][0]["text"].split()
    answer = demo.post("/v1/completions", json=asked | {"bad_words": words[:2]}).json()["choices"][0]["text"]
    assert not [word for word in words[:2] if word in answer]

"""Real clients on the servers that `.ci/check/clients` starts. Outside the default run: `make clients-test`.

Each of the environments has some of the clients, and most do not have the project: nothing here imports it.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from collections.abc import Iterator

import pytest

# Read by some clients when they are imported: no telemetry, no tables of prices, and no server but ours.
os.environ |= {
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.endswith("_API_KEY")]:
    del os.environ[name]

sent_elsewhere: list[str] = []
"""Who was asked for beyond this machine. Clients that send telemetry hide that it failed."""


def refuse_elsewhere(event: str, arguments: tuple[object, ...]) -> None:
    """Nothing but this machine can be looked up or reached, by name or by address."""
    if event == "socket.getaddrinfo":
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None
    else:
        return
    if host not in (None, "127.0.0.1", b"127.0.0.1", "localhost"):
        sent_elsewhere.append(str(host))
        raise ConnectionRefusedError(f"the tests reach this machine only, not {host}")


sys.addaudithook(refuse_elsewhere)


@pytest.fixture(autouse=True)
def nothing_is_sent_elsewhere() -> Iterator[None]:
    yield
    found = [*sent_elsewhere]
    sent_elsewhere.clear()
    assert found == []


@pytest.fixture(scope="session")
def address() -> str:
    """Where the demo model is served."""
    return os.environ["ENGINEWIRE_TRIED_CHAT"]


@pytest.fixture(scope="session")
def base_url(address: str) -> str:
    """The same for clients of OpenAI's API."""
    return f"{address}/v1"


@pytest.fixture(scope="session")
def embeddings_url() -> str:
    """Where a MiniLM is served."""
    return os.environ["ENGINEWIRE_TRIED_EMBEDDINGS"] + "/v1"


@pytest.fixture(scope="session")
def encoder(embeddings_url: str) -> str:
    """The name of that model."""
    with urllib.request.urlopen(f"{embeddings_url}/models") as answer:
        return str(json.load(answer)["data"][0]["id"])

"""Dynamo's frontend over `dynamo_engine.py`, as two processes without any service beside them.

DYNAMO_PYTHON is the Python of an environment of its own:

    pip install --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
    pip install 'pydantic<=2.13.5' uvloop packaging pyyaml msgspec

The worker is found through files and speaks TCP. Tokenizer and chat template are the mocker's own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from enginewire.server.engines.mocker.tokenizer import BOS, EOS, VOCAB_SIZE, byte_tokenizer

MODEL = "mocker"
START_SECONDS = 60.0


def meeting_in(folder: Path) -> dict[str, str]:
    """The environment in which a frontend and its workers find each other, without servers for that."""
    return {
        **os.environ,
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "discovery"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "HF_HUB_OFFLINE": "1",
    }


@contextmanager
def dynamo(python: str, folder: Path, itl_ms: float, per_message: int) -> Iterator[tuple[int, list[int]]]:
    """The port of the frontend, and the ids of frontend and worker. For the rest see `dynamo_engine.py`."""
    write_model(folder / "model")
    port = free_port()
    environment = meeting_in(folder) | {"DYN_LOG": "off"}
    # Its environment shall import its own packages.
    environment.pop("PYTHONPATH", None)
    engine = str(Path(__file__).with_name("dynamo_engine.py"))
    worker = [python, engine, str(folder / "model"), str(itl_ms), str(per_message)]
    frontend = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    with ExitStack() as stack:
        log = stack.enter_context((folder / "dynamo.log").open("wb"))
        processes = [stack.enter_context(process(each, environment, log)) for each in (frontend, worker)]
        if not wait_for_model(port):
            raise SystemExit((folder / "dynamo.log").read_text() + "the frontend found no worker")
        yield port, [each.pid for each in processes]


@contextmanager
def process(
    command: list[str], environment: dict[str, str], log: BinaryIO
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the context."""
    running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield running
    finally:
        # Its own shutdown waits for callers that are not there.
        running.kill()
        running.wait()


def write_model(folder: Path) -> None:
    """What Dynamo wants of a model: the mocker's tokenizer and a configuration."""
    folder.mkdir(parents=True)
    for name, content in byte_tokenizer().files.items():
        (folder / name).write_bytes(content)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 4096,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for_model(port: int, seconds: float = START_SECONDS) -> bool:
    """True once the server there has a model: a frontend that has found its worker."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as answer:
                if json.load(answer)["data"]:
                    return True
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    return False

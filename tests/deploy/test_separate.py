"""Engine and backend with the arguments of deploy/kubernetes/separate find, believe and serve each other."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from enginewire.access.roles import Role
from tests.certificates import Authority
from tests.deploy.programs import DEPLOY, of_manifests
from tests.keys import KEYS, UNKNOWN_KEY, line_of
from tests.patience import PATIENCE_SECONDS

SEPARATE = DEPLOY / "kubernetes" / "separate"


def arguments(name: str, **folders: Path) -> list[str]:
    """Those of the manifest, at free ports of this machine, with other folders for what Secrets hold."""
    (start,) = of_manifests(SEPARATE / f"{name}.yaml")
    found = [
        re.sub(r"(port=)\d+$", r"\g<1>0", word).replace("0.0.0.0", "127.0.0.1") for word in start.arguments
    ]
    for mounted, folder in folders.items():
        place = f"/etc/enginewire/{mounted.replace('_', '-')}/"
        found = [word.replace(place, f"{folder}/") for word in found]
    return found


@pytest.fixture
def secrets(folder: Path) -> dict[str, Path]:
    """The Secrets that docs/operating.md asks for."""
    authority = Authority(folder)
    made = {}
    for name, holder in (
        ("engine", "enginewire-engine"),
        ("target", "enginewire-backend"),
        ("own", "localhost"),
    ):
        made[name] = folder / name
        made[name].mkdir()
        signed = authority.signed(name, holder)
        signed.certificate.rename(made[name] / "tls.crt")
        signed.key.rename(made[name] / "tls.key")
        (made[name] / "ca.crt").write_bytes(authority.file.read_bytes())
    made["keys"] = folder / "keys"
    made["keys"].mkdir()
    (made["keys"] / "callers").write_text(line_of(KEYS[Role.INFER], Role.INFER))
    return made


@pytest.fixture
def backend(launch, secrets: dict[str, Path]) -> Iterator[str]:  # type: ignore[no-untyped-def]
    """Where a backend of the manifest listens, on an engine of the manifest without its model."""
    given = [word for word in arguments("engine", tls=secrets["engine"]) if word != "builtin:demo"]
    # `launch` adds a Unix socket where it sees no port.
    port = given.index("--port=0")
    engine = launch(*given[:port], "--port", "0", *given[port + 1 :])
    folders = {"target_tls": secrets["target"], "tls": secrets["own"], "keys": secrets["keys"]}
    rest = [word for word in arguments("backend", **folders) if not word.startswith("--target=")]
    command = [sys.executable, "-m", "enginewire.backend", "serve", f"--target={engine.target()}", *rest]
    # The last one holds: a mistake shall not take the ten minutes of a model that loads.
    more = [f"--uds={secrets['own']}/b.sock", "--connect-timeout=15"]
    with subprocess.Popen([*command, *more], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        yield next(line.split()[-1] for line in lines if "https://" in line)
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0


def status(address: str, authority: Path, key: str) -> int:
    """What a caller with this key is told."""
    body = json.dumps({"prompt": "x", "max_tokens": 2, "model": ""}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    port = address.rpartition(":")[2]
    request = Request(f"https://localhost:{port}/v1/completions", body, headers)
    try:
        with urlopen(
            request, context=ssl.create_default_context(cafile=authority), timeout=PATIENCE_SECONDS
        ) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_callers_with_a_key_are_served_over_tls_both_ways(backend: str, secrets: dict[str, Path]) -> None:
    authority = secrets["own"] / "ca.crt"
    assert status(backend, authority, KEYS[Role.INFER]) == 200
    assert status(backend, authority, UNKNOWN_KEY) == 401

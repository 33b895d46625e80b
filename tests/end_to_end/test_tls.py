"""TLS between real processes: engine, backend with all its faces, and every program that connects."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.backend.our_processes import command, running
from tests.certificates import Authority, Signed
from tests.end_to_end.processes import EngineProcess
from tests.patience import PATIENCE_SECONDS

ENGINE, BACKEND, USER = "engine.example.org", "backend.example.org", "user.example.org"


@dataclass(frozen=True, slots=True)
class Stack:
    """An engine that lets in the backend alone, and a backend that lets in one user."""

    authority: Authority
    user: Signed
    backend: Signed
    engine_target: str
    grpc: str
    http: str
    smg: str
    health: str

    def trusting(self, caller: Signed, name: str = "") -> list[str]:
        """The options of a program of ours that connects as `caller`."""
        options = {
            "ca-certs": self.authority.file,
            "certfile": caller.certificate,
            "keyfile": caller.key,
            "name": name,
        }
        return [f"--target-ssl-{option}={value}" for option, value in options.items() if value]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="ew-") as place:
        folder = Path(place)
        authority = Authority(folder)
        own = {
            name: authority.signed(name.partition(".")[0], name, "127.0.0.1")
            for name in (ENGINE, BACKEND, USER)
        }

        def listening(mine: Signed, allowed: str) -> list[str]:
            files = [f"--ssl-certfile={mine.certificate}", f"--ssl-keyfile={mine.key}"]
            return [*files, f"--ssl-ca-certs={authority.file}", f"--ssl-allowed-client-names={allowed}"]

        engine = EngineProcess(folder, "--port", "0", *listening(own[ENGINE], BACKEND))
        try:
            target = engine.target()
            mine = own[BACKEND]
            towards = Stack(authority, own[USER], mine, target, "", "", "", "").trusting(mine, ENGINE)
            faces = ["--port", "0", "--http-port", "0", "--smg-port", "0", "--health-port", "0"]
            arguments = ["--target", target, *towards, *faces, *listening(mine, USER)]
            with running(command("serve", *arguments), stderr=subprocess.PIPE) as process:
                found = addresses(process)
                yield Stack(authority, own[USER], mine, target, *found)
        finally:
            engine.end()


def addresses(process: subprocess.Popen[bytes]) -> list[str]:
    """Where the three faces of a backend listen, and where its health is, once they do."""
    lines, found = [], []
    for line in process.stderr:
        lines.append(line.decode())
        if is_health := re.match(r"health at (\S+)", lines[-1]):
            health = is_health[1]
        found += re.findall(r"^listening on (\S+)", lines[-1])
        if len(found) == 3:
            # Whatever else it says must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return [*found, health]
    raise AssertionError("".join(lines))


def get(stack: Stack, path: str, caller: Signed | None, body: object = None) -> bytes:
    context = ssl.create_default_context(cafile=stack.authority.file)
    if caller is not None:
        context.load_cert_chain(caller.certificate, caller.key)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{stack.http}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, context=context, timeout=PATIENCE_SECONDS) as answer:
        return answer.read()


def ours(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`enginewire ARGUMENTS` to its end."""
    argv = [sys.executable, "-m", "enginewire", *arguments]
    return subprocess.run(argv, capture_output=True, encoding="utf-8", timeout=PATIENCE_SECONDS, input="")


def test_http_answers_over_tls_to_whom_it_may(stack: Stack) -> None:
    assert stack.http.startswith("https://127.0.0.1:")
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    answer = json.loads(get(stack, "/v1/chat/completions", stack.user, body))
    assert answer["usage"]["completion_tokens"] == 4


def test_metrics_tell_of_the_certificate_for_callers_and_of_the_one_for_engines(stack: Stack) -> None:
    page = get(stack, "/metrics", stack.user).decode()
    sample = r'^enginewire:certificate_remaining_seconds{side="(\w+)"} (\S+)$'
    remaining = re.findall(sample, page, re.MULTILINE)
    assert [side for side, _ in remaining] == ["server", "client"]
    assert all(float(seconds) > 3600 for _, seconds in remaining)


def test_http_tells_a_caller_of_another_name_why(stack: Stack) -> None:
    with pytest.raises(urllib.request.HTTPError) as caught:
        get(stack, "/v1/models", stack.backend)
    assert caught.value.code == 403
    error = json.loads(caught.value.read())["error"]
    assert error["message"] == "no name of your certificate is allowed here"
    assert error["code"] == "forbidden"
    with pytest.raises(OSError, match=r"certificate required|reset|closed|EOF"):
        get(stack, "/v1/models", None)


def test_probes_need_no_certificate(stack: Stack) -> None:
    with grpc.insecure_channel(stack.health) as channel:
        asked = health_pb2.HealthCheckRequest(service="enginewire.v1.BackendService")
        answer = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=PATIENCE_SECONDS)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_new_certificates_cut_no_answer(stack: Stack) -> None:
    """Under the event loop that the programs run on."""
    context = ssl.create_default_context(cafile=stack.authority.file)
    context.load_cert_chain(stack.user.certificate, stack.user.key)
    host, _, port = stack.http.removeprefix("https://").rpartition(":")
    first = http.client.HTTPSConnection(host, int(port), context=context, timeout=PATIENCE_SECONDS)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, "stream": True}
    first.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    answer = first.getresponse()
    for number in range(5):
        renewed = stack.authority.signed(f"renewed{number}", BACKEND, "127.0.0.1")
        stack.backend.replace_by(renewed)
        other = http.client.HTTPSConnection(host, int(port), context=context, timeout=PATIENCE_SECONDS)
        other.connect()
        shown = other.sock.getpeercert(binary_form=True)
        other.close()
        assert shown == ssl.PEM_cert_to_DER_cert(renewed.certificate.read_text())
    assert answer.read().rstrip().endswith(b"data: [DONE]")
    first.close()


@pytest.mark.parametrize("face", ["grpc", "smg"])
def test_faces_of_grpc_let_in_the_same_callers(stack: Stack, face: str) -> None:
    target = getattr(stack, face).removeprefix("grpcs://")
    authorities = stack.authority.file.read_bytes()
    for caller, expected in ((stack.user, None), (stack.backend, grpc.StatusCode.PERMISSION_DENIED)):
        files = caller.key.read_bytes(), caller.certificate.read_bytes()
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(authorities, *files)) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            try:
                health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_SECONDS)
                code = None
            except grpc.RpcError as error:
                code = error.code()
            assert code is expected


def test_the_programs_that_connect_to_an_engine_take_the_same_options(stack: Stack) -> None:
    trusting = stack.trusting(stack.backend, ENGINE)
    top = ours("top", "--once", "--json", "--target", stack.engine_target, *trusting)
    assert (top.returncode, len(json.loads(top.stdout)["engines"])) == (0, 1), top.stderr
    few = ["--num-prompts", "2", "--output-len", "2", "--json"]
    bench = ours("bench", stack.engine_target, *few, *trusting)
    assert (bench.returncode, json.loads(bench.stdout)["completed"]) == (0, 2), bench.stderr


def test_a_chat_reaches_a_backend_over_tls(stack: Stack) -> None:
    argv = [sys.executable, "-m", "enginewire", "chat", stack.grpc, *stack.trusting(stack.user)]
    chat = subprocess.run(
        [*argv, "--max-tokens", "3"],
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        input="hello\n",
    )
    assert (chat.returncode, chat.stdout.strip() != "") == (0, True), chat.stderr


def test_the_kit_judges_an_engine_on_tls(stack: Stack) -> None:
    files = {
        "--ssl-ca-certs": stack.authority.file,
        "--ssl-certfile": stack.backend.certificate,
        "--ssl-keyfile": stack.backend.key,
    }
    options = [str(word) for pair in files.items() for word in pair]
    kit = ours("conformance", "--target", stack.engine_target, "--run", "STR-02", *options)
    assert kit.returncode == 0, kit.stdout + kit.stderr


def test_a_program_that_believes_another_authority_says_nothing_and_tells_why(
    stack: Stack, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    top = ours("top", "--once", f"--target={stack.engine_target}", f"--target-ssl-ca-certs={other.file}")
    assert top.returncode == 1
    wrong = ours("top", "--once", f"--target-ssl-ca-certs={tmp_path / 'gone.pem'}")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "--target-ssl-ca-certs" in wrong.stderr

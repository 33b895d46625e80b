from __future__ import annotations

import socket
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from enginewire import v1 as pb
from enginewire.options import OptionError
from enginewire.options.declaration import options_of
from enginewire.server.config.given import load_options
from enginewire.server.config.options import DEFAULT_PORT, ServerOptions
from enginewire.server.config.vllm_rules import NO_EFFECT

pytestmark = pytest.mark.usefixtures("clean_environment")


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        load_options(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_without_options_the_demo_model_is_served_on_a_private_socket(tmp_path: Path) -> None:
    options = load_options([])
    assert (options.model, options.engine) == ("builtin:demo", "torch")
    assert (options.uds, options.port) == (tmp_path / "enginewire" / "engine.sock", None)


@pytest.mark.parametrize("flag", ["--model", "--model-path", "--model-id"])
def test_the_model_has_the_names_that_people_know(flag: str) -> None:
    assert (
        load_options([flag, "m"]) == load_options(["m"]) == ServerOptions(model="m", uds=load_options([]).uds)
    )


def test_a_port_or_a_host_means_tcp() -> None:
    assert load_options(["--port", "0"]).port == 0
    assert load_options(["--port", "0"]).host == "127.0.0.1"
    assert load_options(["--host", "localhost"]).port == DEFAULT_PORT
    assert load_options(["--host", "::1", "--port", "1"]).port == 1


def test_a_socket_and_a_port_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "--uds", "/tmp/x.sock", "--port", "1")
    assert message == "enginewire-server: --uds and --port exclude each other: there is one address\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1"])
def test_a_host_beyond_loopback_needs_a_word(capsys: pytest.CaptureFixture[str], host: str) -> None:
    message = refusal(capsys, "--host", host)
    assert "--host" in message
    assert "--allow-insecure" in message
    assert load_options(["--host", host, "--allow-insecure"]).host == host


def test_a_name_needs_it_when_it_resolves_to_such_an_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "127.0.0.1", "10.0.0.1")
    assert "--allow-insecure" in refusal(capsys, "--host", "localhost")
    resolve_to(monkeypatch, "127.0.1.1")
    assert load_options(["--host", "gpu.example.org"]).host == "gpu.example.org"


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--engine", "sglang"], ["--engine", "torch, mocker, upstream, vllm, openai or module:Class"]),
        (["--engine", ":Class"], ["--engine"]),
        (["--engine", "module:"], ["--engine"]),
        (
            ["--max-num-batched-tokens", "8", "--max-num-seqs", "9"],
            ["--max-num-batched-tokens", "--max-num-seqs"],
        ),
        (
            ["--num-kv-blocks", "8", "--kv-cache-memory-bytes", "1GiB"],
            ["--num-gpu-blocks-override", "--kv-cache-memory-bytes"],
        ),
        (["--mocker-itl-ms", "5"], ["--mocker-", "--engine mocker"]),
        (["--engine-args=--enforce-eager"], ["--engine-args", "--engine vllm"]),
        (["--engine", "vllm", "--engine-args=it's"], ["--engine-args", "quotes"]),
        (["--mocker-script", "x.json"], ["--engine mocker"]),
        (["--max-num-seqs", "0"], ["--max-num-seqs", "at least 1"]),
        (["--shutdown-timeout", "-1"], ["--shutdown-timeout", "at least 0"]),
        (["--max-message-bytes", "2GiB"], ["--max-message-bytes", "2147483647"]),
        (["--device", "tpu"], ["--device", "auto, cpu, cuda"]),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_flag(
    capsys: pytest.CaptureFixture[str], argv: list[str], names: list[str]
) -> None:
    message = refusal(capsys, *argv)
    assert message.count("\n") == 1
    for name in names:
        assert name in message


def test_the_rules_hold_for_options_made_in_code() -> None:
    with pytest.raises(OptionError, match="--allow-insecure"):
        ServerOptions(host="0.0.0.0")


@pytest.mark.parametrize("engine", ["mocker", "my.engines:Fast"])
def test_other_engines_can_be_named(engine: str) -> None:
    assert load_options(["--engine", engine]).engine == engine


def test_mocker_options_go_with_the_mocker() -> None:
    options = load_options(["--engine", "mocker", "--mocker-itl-ms", "2.5", "--mocker-fault", "step:17"])
    assert (options.mocker_itl_ms, options.mocker_fault) == (2.5, "step:17")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("MAX_NUM_SEQS", "8", 8), ("REFLECTION", "true", True), ("SERVED_MODEL_NAME", "a,b", ("a", "b"))],
)
def test_the_environment_sets_options(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(f"ENGINEWIRE_{name}", text)
    assert getattr(load_options([]), name.lower()) == value


def test_every_contract_field_that_an_option_names_exists() -> None:
    for option in options_of(ServerOptions):
        message, _, field = option.declaration.contract.partition(".")
        if message:
            descriptor: Descriptor = getattr(pb, message).DESCRIPTOR
            assert field in descriptor.fields_by_name, option.declaration.contract


def test_the_dump_of_a_server_starts_the_same_server(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["--host", "localhost", "--served-model-name", "a", "--max-num-seqs", "3", "--reflection"]
    with pytest.raises(SystemExit):
        load_options([*argv, "--dump-config"])
    (tmp_path / "dump.toml").write_text(capsys.readouterr().out)
    assert load_options(["--config", str(tmp_path / "dump.toml")]) == load_options(argv)


def test_an_upstream_means_its_engine(tmp_path: Path) -> None:
    options = load_options(["--upstream", "unix:/run/raw.sock"])
    assert (options.engine, options.upstream) == ("upstream", "unix:/run/raw.sock")
    assert load_options(["--upstream", "localhost:50050", "--engine", "upstream"]).engine == "upstream"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--engine", "upstream"], "needs --upstream"),
        (["--upstream", "unix:/run/raw.sock", "--engine", "mocker"], "there is one engine"),
        (["--upstream", "/run/raw.sock"], "must be unix:/path or host:port"),
        (["--upstream", "unix:/run/"], "must be unix:/path or host:port"),
        (["--upstream", "10.0.0.1:50050"], "say --allow-insecure"),
    ],
)
def test_an_upstream_that_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    message = refusal(capsys, *argv)
    assert words in message
    assert "--upstream" in message


def test_an_upstream_elsewhere_needs_a_word() -> None:
    assert load_options(["--upstream", "10.0.0.1:50050", "--allow-insecure"]).upstream == "10.0.0.1:50050"


@pytest.mark.parametrize("name", NO_EFFECT)
def test_what_vllm_would_not_hear_of_is_refused_even_as_its_default(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = next(option for option in options_of(ServerOptions) if option.name == name)
    value = option.shown_default if option.default not in (None, (), "") else "1"
    monkeypatch.setenv(option.variable("ENGINEWIRE_"), value)
    said = f"{option.flag}: has no effect with --engine vllm; {NO_EFFECT[name]}"
    assert said in refusal(capsys, "--engine", "vllm")
    assert load_options(["--engine", "torch"]).engine == "torch"


def test_every_other_option_of_the_model_is_passed_on_to_vllm() -> None:
    argv = ["--engine", "vllm", "--dtype", "float32", "--max-num-seqs", "3", "--seed", "1"]
    assert load_options([*argv, "--no-enable-prefix-caching"]).max_num_seqs == 3

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.config import (
    DEFAULT_HTTP_PORT,
    DEFAULT_SERVE_PORT,
    GenerateOptions,
    JsonlOptions,
    ServeOptions,
    load_serve,
)
from enginewire.options import OptionError, load
from enginewire.options.declaration import options_of

pytestmark = pytest.mark.usefixtures("clean_environment")


def load_generate(argv: list[str]) -> GenerateOptions:
    return load(GenerateOptions, argv, prog="generate", description="").options


def load_jsonl(argv: list[str]) -> JsonlOptions:
    return load(JsonlOptions, argv, prog="jsonl", description="").options


def resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses. `127.0.0.1`, the default of the other flags, is one too."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    numeric = socket.getaddrinfo("127.0.0.1", 0)
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *_, **__: numeric if host == "127.0.0.1" else found
    )


def refusal(capsys: pytest.CaptureFixture[str], read: Callable[[list[str]], object], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        read(list(argv))
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_the_default_target_is_where_the_engine_listens_by_default(tmp_path: Path) -> None:
    assert load_generate([]).target == (f"unix:{tmp_path}/enginewire/engine.sock",)


def test_generate_takes_a_prompt_and_how_to_answer_it() -> None:
    argv = ["hello", "--max-tokens", "5", "--temperature", "0", "--stop", "a", "--stop", "b,c", "--seed", "1"]
    options = load_generate([*argv, "--no-chat", "--target", "localhost:1"])
    assert (options.prompt, options.max_tokens, options.temperature) == ("hello", 5, 0.0)
    assert (options.stop, options.seed, options.chat) == (("a", "b,c"), 1, False)
    assert options.target == ("localhost:1",)


def test_what_a_request_leaves_open_is_left_to_the_engine() -> None:
    options = load_jsonl([])
    assert (options.temperature, options.top_p, options.top_k, options.seed, options.n) == (None,) * 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--top-p", "0"], "--top-p must be above 0"),
        (["--min-tokens", "5", "--max-tokens", "4"], "--min-tokens must not be above --max-tokens"),
        (["--stop", ""], "--stop must not be empty"),
        (["--system", "Be brief.", "--no-chat"], "--system needs --chat"),
        (["--launch", "enginewire 'engine"], "--launch: no closing quotation"),
        (["--temperature", "nan"], "--temperature: must be a number from 0 to 100, got nan"),
        (["--seed", "-1"], "--seed: must be a whole number from 0 to 18446744073709551615"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_flag(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert message in refusal(capsys, load_generate, *argv)


def test_standard_streams_are_the_default_of_jsonl() -> None:
    assert (load_jsonl([]).input, load_jsonl([]).output) == (Path("-"), Path("-"))
    assert load_jsonl(["in.jsonl", "--output", "out.jsonl"]).input == Path("in.jsonl")


def test_serve_listens_on_a_socket_of_its_own_or_on_tcp(tmp_path: Path) -> None:
    assert load_serve([]).uds == tmp_path / "enginewire" / "backend.sock"
    assert load_serve([]).port is None
    assert load_serve(["--host", "localhost"]).port == DEFAULT_SERVE_PORT
    assert load_serve(["--port", "0"]).port == 0


def test_serve_refuses_two_addresses_and_open_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "exclude each other" in refusal(capsys, load_serve, "--uds", "/tmp/x", "--port", "1")
    assert "--allow-insecure" in refusal(capsys, load_serve, "--host", "0.0.0.0")
    assert load_serve(["--host", "0.0.0.0", "--allow-insecure"]).host == "0.0.0.0"


@pytest.mark.parametrize("flag", ["--host", "--http-host", "--smg-host"])
def test_a_name_is_judged_by_what_it_resolves_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    resolve_to(monkeypatch, "10.0.0.1")
    assert f"{flag}: whoever reaches" in refusal(capsys, load_serve, flag, "localhost")
    assert load_serve([flag, "localhost", "--allow-insecure"]).allow_insecure
    resolve_to(monkeypatch, "127.0.1.1")
    assert not load_serve([flag, "myhost"]).allow_insecure


def test_the_engines_environment_does_not_reach_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEWIRE_PORT", "50051")
    monkeypatch.setenv("ENGINEWIRE_BACKEND_TARGET", "localhost:50051")
    options = load_serve([])
    assert (options.port, options.target) == (None, ("localhost:50051",))


def test_the_launch_command_is_split_as_a_shell_would() -> None:
    options = GenerateOptions(launch="enginewire engine 'my model' --port 1")
    assert options.launch_command == ["enginewire", "engine", "my model", "--port", "1"]
    assert GenerateOptions().launch_command == []


def test_the_rules_hold_for_options_made_in_code() -> None:
    with pytest.raises(OptionError, match="--launch"):
        ServeOptions(launch="'")
    for path in ("llm", "/llm/", "/", "//llm", "/l m", "/llm\n"):
        with pytest.raises(OptionError, match="--root-path"):
            ServeOptions(root_path=path)


@pytest.mark.parametrize("options_class", [GenerateOptions, JsonlOptions, ServeOptions])
def test_every_contract_field_that_an_option_names_exists(
    options_class: type[GenerateOptions | JsonlOptions | ServeOptions],
) -> None:
    for option in options_of(options_class):
        message, _, field = option.declaration.contract.partition(".")
        if message:
            assert field in getattr(pb, message).DESCRIPTOR.fields_by_name, option.declaration.contract


def test_http_is_served_only_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_serve([]).http_port is None
    assert load_serve(["--http-port", "0"]).http_port == 0
    assert load_serve(["--http-host", "::1"]).http_port == DEFAULT_HTTP_PORT
    assert "--allow-insecure" in refusal(capsys, load_serve, "--http-host", "0.0.0.0")
    assert load_serve(["--http-host", "0.0.0.0", "--allow-insecure"]).http_host == "0.0.0.0"

from __future__ import annotations

import shlex

import pytest

from enginewire.conformance import options
from enginewire.conformance.__main__ import main
from enginewire.conformance.report.reproduction import grpcurl_line, kit_line
from enginewire.conformance.running.outcome import ExitCode, Report, Status
from tests.conformance.report.reports import exchange, outcome, report

SECURED = [
    *("--target", "host:1", "--tls-ca", "our ca.pem", "--tls-name", "engine", "--allow-destructive"),
    *("--declare", "tracing", "--time-scale", "2.5"),
    *("--seed", "1234567", "--cases", "0", "--companies", "8", "--patience", "0.5"),
]


def asked(*arguments: str) -> Report:
    parsed = options.parse(arguments)
    return Report(target=parsed.target or "unix:/gone.sock", invocation=options.invocation(parsed))


def test_a_repro_line_leads_to_the_same_run() -> None:
    line = kit_line(asked(*SECURED), outcome(Status.FAIL, "STR-02"))
    again = options.parse(shlex.split(line)[1:])
    expected = options.parse([*SECURED, "--run", "STR-02", "--trace"])
    assert vars(again) == vars(expected)


def test_a_repro_line_has_no_metadata() -> None:
    assert "secret" not in asked("--target", "host:1", "--metadata", "authorization=secret").invocation


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["--target", "host:1"], "-plaintext -import-path"),
        (["--target", "unix:/run/e.sock"], "-plaintext -unix -import-path"),
        (SECURED, "grpcurl -cacert 'our ca.pem' -servername engine -import-path"),
        (["--launch", "serve --tls {port}"], "-plaintext -unix -import-path"),
    ],
)
def test_grpcurl_is_told_how_to_reach_the_target(arguments: list[str], address: str) -> None:
    assert address in grpcurl_line(asked(*arguments), exchange())


def test_what_grpcurl_cannot_send_has_no_line() -> None:
    raw = exchange()
    raw.request = b"\xff"
    assert grpcurl_line(report(), raw) == ""
    raw.method = "/no.Service/Method"
    assert grpcurl_line(report(), raw) == ""


def test_a_request_is_quoted_for_a_shell() -> None:
    words = shlex.split(grpcurl_line(asked("--target", "host:1"), exchange("it's $(reboot)")))
    assert words[words.index("-d") + 1] == '{"request_id": "it\'s $(reboot)"}'


@pytest.mark.parametrize("text", ["0/3", "4/3", "3", "a/b", "1/0", "-1/3", ""])
def test_a_shard_is_one_of_several(text: str) -> None:
    assert options.parse_self_test(["--shard", "3/3"]).shard == (3, 3)
    with pytest.raises(SystemExit, match="2"):
        options.parse_self_test([f"--shard={text}"])


def test_a_certificate_that_is_not_there_is_a_usage_error() -> None:
    assert main(["--target", "127.0.0.1:1", "--tls-ca", "no/such.pem"]) == ExitCode.USAGE


def test_a_key_comes_with_every_call_and_is_in_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = ("authorization", "Bearer canary-key")
    given = options.parse(["--target", "x:1", "--metadata", "a=b", "--api-key", "canary-key"])
    assert options.connection(given, "x:1").metadata == (("a", "b"), pair)
    assert "canary" not in options.invocation(given)
    monkeypatch.setenv(options.API_KEY, "canary-key")
    assert options.connection(options.parse(["--target", "x:1"]), "x:1").metadata == (pair,)


def test_the_help_does_not_show_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(options.API_KEY, "canary-key")
    with pytest.raises(SystemExit):
        options.parse(["--help"])
    assert "canary" not in capsys.readouterr().out

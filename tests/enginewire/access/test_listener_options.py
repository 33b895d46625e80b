"""Which addresses need TLS and keys, which options of TLS go together, and that keys are never printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewire.access.listener_options import listener_tls
from enginewire.access.roles import Role
from enginewire.backend.config import ServeOptions
from enginewire.options import OptionError, load
from enginewire.server.config.options import ServerOptions
from tests.certificates import Authority
from tests.keys import ALL_KEYS, KEYS, line_of

PROGRAMS = pytest.mark.parametrize("program", [ServerOptions, ServeOptions])
FACES = {ServerOptions: ("host",), ServeOptions: ("host", "http_host", "smg_host")}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    authority = Authority(tmp_path)
    mine = authority.signed("mine")
    return {
        "ssl_certfile": mine.certificate,
        "ssl_keyfile": mine.key,
        "ssl_ca_certs": authority.file,
    }


def refusal(program, **given: object) -> str:
    with pytest.raises(OptionError) as caught:
        program(**given)
    return str(caught.value)


@PROGRAMS
def test_beyond_loopback_callers_need_a_certificate_or_a_key_or_somebody_says_that_they_do_not(
    program, files: dict[str, Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(line_of(KEYS[Role.INFER], Role.INFER))
    authorities = files.pop("ssl_ca_certs")
    for face in FACES[program]:
        outside = {face: "10.0.0.1"}
        said = refusal(program, **outside)
        assert said.startswith(f"--{face.replace('_', '-')}: whoever reaches a host beyond loopback could ")
        assert "could read prompts and send requests" in said
        assert "could send requests;" in refusal(program, **outside, **files)
        for given in ({"api_key": ALL_KEYS}, {"api_key_file": keys}):
            assert "could read prompts and keys;" in refusal(program, **outside, **given)
            assert program(**outside, **files, **given)
        assert program(**outside, **files, ssl_ca_certs=authorities)
        assert "could send requests;" in refusal(
            program, **outside, **files, ssl_ca_certs=authorities, ssl_cert_reqs="none"
        )
        for given in ({}, files, {"api_key": ALL_KEYS}):
            assert program(**outside, **given, allow_insecure=True)


@PROGRAMS
def test_keys_are_tried_before_anything_listens(program, tmp_path: Path) -> None:
    assert refusal(program, api_key=("short",)).startswith("--api-key: number 1 must be")
    assert refusal(program, api_key_file=tmp_path / "none").startswith("--api-key-file: ")


@PROGRAMS
def test_keys_come_by_the_environment_and_are_never_shown(
    program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = getattr(program, "ENV_PREFIX", "ENGINEWIRE_")
    environment = {f"{prefix}API_KEY": ",".join(ALL_KEYS)}
    options = load(program, [], prog="p", description="d", environment=environment).options
    assert options.api_key == ALL_KEYS
    with pytest.raises(SystemExit):
        load(program, ["--dump-config"], prog="p", description="d", environment=environment)
    with pytest.raises(SystemExit):
        load(program, [], prog="p", description="d", environment={f"{prefix}API_KEY": "root:canary-of-root"})
    shown = capsys.readouterr()
    assert "api_key = ***" in shown.out
    assert "--api-key: number 1 must be" in shown.err
    assert "canary" not in shown.out + shown.err + repr(options)


@PROGRAMS
def test_what_means_nothing_alone_is_refused(program, files: dict[str, Path]) -> None:
    for name in ("ssl_keyfile", "ssl_ca_certs"):
        flag = f"--{name.replace('_', '-')}"
        assert refusal(program, **{name: files[name]}).startswith(f"{flag} needs --ssl-certfile")
    assert "--ssl-cert-reqs needs --ssl-certfile" in refusal(program, ssl_cert_reqs="2")
    authorities = files.pop("ssl_ca_certs")
    assert "needs --ssl-ca-certs" in refusal(program, **files, ssl_cert_reqs="required")
    assert "needs --ssl-ca-certs" in refusal(program, **files, ssl_allowed_client_names=("a",))
    given = {**files, "ssl_ca_certs": authorities, "ssl_cert_reqs": "0"}
    assert "needs --ssl-ca-certs" in refusal(program, **given, ssl_allowed_client_names=("a",))


@PROGRAMS
def test_callers_need_a_certificate_when_their_authorities_are_named(program, files: dict[str, Path]) -> None:
    assert listener_tls(program()) is None
    asked = {reqs: listener_tls(program(**files, ssl_cert_reqs=reqs)) for reqs in (None, "2", "0", "none")}
    assert {reqs: tls.requires_client for reqs, tls in asked.items()} == {
        None: True,
        "2": True,
        "0": False,
        "none": False,
    }
    del files["ssl_ca_certs"]
    assert not listener_tls(program(**files)).requires_client


@PROGRAMS
def test_files_are_tried_before_anything_listens(program, files: dict[str, Path]) -> None:
    files["ssl_keyfile"].write_text("no key")
    assert "must hold a PRIVATE KEY" in refusal(program, **files)


def test_names_are_compared_whole_or_from_a_dot_on(files: dict[str, Path]) -> None:
    names = ("one.example.org", "*.example.com", "spiffe://example.org/backend")
    tls = listener_tls(ServerOptions(**files, ssl_allowed_client_names=names))
    for name in ("one.example.org", "a.example.com", "b.a.example.com", "spiffe://example.org/backend"):
        assert tls.allows(["other", name])
    for name in ("", "two.one.example.org", "example.com", "badexample.com", "spiffe://example.org/backend2"):
        assert not tls.allows([name])
    assert not tls.allows([])
    assert listener_tls(ServerOptions(**files)).allows([])

"""Which addresses need TLS and keys, and that keys stay out of what options print."""

from __future__ import annotations

from pathlib import Path

import pytest

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

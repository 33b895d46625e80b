"""What the files in deploy/ start are programs of ours, with options that these accept together."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewire.access.roles import Role
from enginewire.backend.config import load_serve
from enginewire.server.config.given import load_options
from tests.certificates import Authority
from tests.deploy.programs import Program, programs
from tests.keys import KEYS, line_of

STARTS = list(programs())
SECRETS = "/etc/enginewire/"
"""Where the files of Secrets are mounted."""


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """What the Secrets have, each in the folder in which it is mounted."""
    for name in ("tls", "target-tls"):
        (tmp_path / name).mkdir()
        authority = Authority(tmp_path / name)
        authority.file.rename(tmp_path / name / "ca.crt")
        signed = authority.signed("tls")
        signed.certificate.rename(tmp_path / name / "tls.crt")
        signed.key.rename(tmp_path / name / "tls.key")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "callers").write_text(line_of(KEYS[Role.INFER], Role.INFER))
    return tmp_path


@pytest.mark.parametrize("start", STARTS, ids=str)
def test_the_options_exist_and_fit_each_other(
    start: Program, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in start.environment.items():
        monkeypatch.setenv(name, value)
    arguments = [word.replace(SECRETS, f"{secrets}/") for word in start.arguments]
    if start.name == "enginewire-server":
        load_options(arguments)
    elif start.name == "enginewire-backend serve":
        load_serve(arguments)
    else:
        assert start.name == "enginewire-conformance"
        assert not arguments

"""Which options of TLS go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginewire.access.listener_options import listener_tls
from enginewire.backend.config import ServeOptions
from enginewire.options import OptionError
from enginewire.server.config.options import ServerOptions
from tests.certificates import Authority

PROGRAMS = pytest.mark.parametrize("program", [ServerOptions, ServeOptions])


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

"""What files hold has to be usable, and what replaces it as well."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from enginewire.tls.certificate import CertificateFiles, InvalidCertificate, PemFiles, Side, read
from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def refusal(files: PemFiles, side: Side = "server") -> str:
    with pytest.raises(InvalidCertificate) as caught:
        read(files, side)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("side", ["server", "client"])
def test_a_certificate_of_today_with_its_key_is_read(authority: Authority, side: Side) -> None:
    mine = authority.signed("mine")
    files = PemFiles(mine.certificate, mine.key, authority.file)
    material = read(files, side)
    assert (material.chain, material.key) == (mine.certificate.read_bytes(), mine.key.read_bytes())
    assert material.authorities == authority.file.read_bytes()
    assert CertificateFiles(files, side).remaining_seconds > 24 * 3600


def test_one_file_may_hold_both(authority: Authority, tmp_path: Path) -> None:
    mine, both = authority.signed("mine"), tmp_path / "both.pem"
    both.write_bytes(mine.key.read_bytes() + mine.certificate.read_bytes())
    assert read(PemFiles(both, both), "server").not_after > 0


@pytest.mark.parametrize("side", ["server", "client"])
def test_one_that_has_expired_is_refused_with_the_day(authority: Authority, side: Side) -> None:
    old = authority.signed("old", is_expired=True)
    expected = f"--ssl-certfile: {old.certificate}: expired on Jan  1 00:00:00 2002 GMT; a certificate that"
    assert refusal(PemFiles(old.certificate, old.key), side).startswith(expected)


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    mine, other = authority.signed("mine"), authority.signed("other")
    message = refusal(PemFiles(mine.certificate, other.key, prefix="--target-ssl-"))
    assert message == f"--target-ssl-keyfile: {other.key}: must be the key of {mine.certificate}"


def test_files_that_hold_something_else_are_named(authority: Authority, tmp_path: Path) -> None:
    mine, broken, gone = authority.signed("mine"), tmp_path / "broken.pem", tmp_path / "gone.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    secret = tmp_path / "secret.pem"
    secret.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    for files, expected in (
        (PemFiles(gone, mine.key), f"--ssl-certfile: {gone}: no such file or directory"),
        (PemFiles(mine.certificate, tmp_path), f"--ssl-keyfile: {tmp_path}: is a directory"),
        (PemFiles(mine.key, mine.key), f"--ssl-certfile: {mine.key}: must hold a CERTIFICATE in PEM"),
        (PemFiles(mine.certificate, mine.certificate), "must hold a PRIVATE KEY in PEM"),
        (PemFiles(broken, mine.key), f"--ssl-certfile: {broken}: cannot be used with {mine.key}"),
        (PemFiles(mine.certificate, secret), "has a passphrase; a key without one is needed"),
        (PemFiles(mine.certificate, mine.key, broken), f"--ssl-ca-certs: {broken}: must hold certificates"),
    ):
        assert expected in refusal(files)


def test_whoever_starts_in_the_middle_of_a_replacement_gets_the_new_pair(authority: Authority) -> None:
    mine, new = authority.signed("mine"), authority.signed("new")
    mine.certificate.write_bytes(new.certificate.read_bytes())
    second_half = threading.Timer(0.1, lambda: mine.replace_by(new))
    second_half.start()
    files = CertificateFiles(PemFiles(mine.certificate, mine.key), "server")
    second_half.join()
    assert files.current().key == new.key.read_bytes()


def test_new_files_are_in_use_at_once_and_broken_ones_never(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    mine, next_one, old = (
        authority.signed("mine"),
        authority.signed("next"),
        authority.signed("old", is_expired=True),
    )
    files = CertificateFiles(PemFiles(mine.certificate, mine.key), "server")
    first = files.current()
    assert files.current() is first
    mine.replace_by(old)
    for _ in range(3):
        assert files.current() is first
    assert files.num_failures == 1
    assert re.search(f"from before stays in use: --ssl-certfile: {mine.certificate}: expired", caplog.text)
    mine.replace_by(next_one)
    assert files.current().chain == next_one.certificate.read_bytes()
    mine.key.unlink()
    assert files.current().chain == next_one.certificate.read_bytes()
    assert files.num_failures == 2

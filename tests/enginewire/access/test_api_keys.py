"""Which keys there are: as options, and as hashes in a file that may change."""

from __future__ import annotations

import hmac
import logging
import os
import subprocess
from pathlib import Path

import pytest

from enginewire.access.api_keys import ApiKeys
from enginewire.access.known_callers import InvalidKeys
from enginewire.access.roles import Role
from tests.keys import ALL_KEYS, KEYS, UNKNOWN_KEY, line_of
from tests.repository import ROOT

PLAIN = "canary-plain-3d5f8a77"


def role_in(keys: ApiKeys, key: str) -> Role | None:
    found = keys.find(key)
    return None if found is None else found.role


def test_a_key_may_infer_unless_a_role_is_said() -> None:
    keys = ApiKeys((PLAIN, *ALL_KEYS))
    assert role_in(keys, PLAIN) is Role.INFER
    assert {role: role_in(keys, key) for role, key in KEYS.items()} == {role: role for role in Role}
    for other in (UNKNOWN_KEY, "", PLAIN[:-1], f"infer:{PLAIN}", PLAIN.upper(), "ü", "\udcff"):
        assert keys.find(other) is None


@pytest.mark.parametrize(
    "given",
    [
        "short",
        "",
        "admin:",
        "admin:short",
        "Admin:canary-key-of-an-admin",
        "root:canary-key-of-root",
        "canary key with spaces",
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(InvalidKeys, match=r"^--api-key: number 2 must be KEY or ROLE:KEY") as caught:
        ApiKeys((PLAIN, given))
    assert "canary" not in str(caught.value)


def test_a_key_has_one_role(tmp_path: Path) -> None:
    with pytest.raises(InvalidKeys, match="the same key twice") as caught:
        ApiKeys((PLAIN, f"admin:{PLAIN}"))
    assert "canary" not in str(caught.value)
    file = tmp_path / "keys"
    file.write_text(line_of(PLAIN, Role.READ))
    with pytest.raises(InvalidKeys, match="the same key twice"):
        ApiKeys((PLAIN,), file)


def test_a_file_has_hashes_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\n" + line_of(PLAIN, Role.READ, " # of the dashboard"))
    keys = ApiKeys(ALL_KEYS, file)
    assert role_in(keys, PLAIN) is Role.READ
    assert role_in(keys, KEYS[Role.ADMIN]) is Role.ADMIN


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no key"),
        (b"# nothing\n", "has no key"),
        (b"infer canary-plain-3d5f8a77", "line 1: must be a role and a hash"),
        (b"\ninfer sha256:" + b"0" * 63, "line 2: must be"),
        (b"root sha256:" + b"0" * 64, "line 1: must be"),
        ("ü".encode(), "must be ASCII"),
        (b"#" * 2**21, "must have at most"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(InvalidKeys, match=said) as caught:
        ApiKeys((), file)
    assert str(caught.value).startswith(f"--api-key-file: {file}: ")
    assert "canary" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidKeys, match="no such file"):
        ApiKeys((), tmp_path / "none")


def test_new_keys_are_in_use_at_once_and_unusable_ones_never(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys"
    file.write_text(line_of(PLAIN, Role.READ))
    keys = ApiKeys((), file)
    file.write_text(line_of(UNKNOWN_KEY, Role.ADMIN))
    assert (role_in(keys, PLAIN), role_in(keys, UNKNOWN_KEY)) == (None, Role.ADMIN)
    assert f"{file}: a new list of keys is in use" in caplog.text
    for content in ("", "infer sha256:"):
        file.write_text(content)
        assert role_in(keys, UNKNOWN_KEY) is Role.ADMIN
    os.unlink(file)
    assert role_in(keys, UNKNOWN_KEY) is Role.ADMIN
    assert caplog.text.count("the list of keys from before stays in use") == 3
    file.write_text(line_of(PLAIN, Role.INFER))
    assert (role_in(keys, PLAIN), role_in(keys, UNKNOWN_KEY)) == (Role.INFER, None)


def test_every_key_is_compared_in_whole_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ApiKeys(ALL_KEYS)
    compared: list[tuple[bytes, bytes]] = []

    def compare(ours: bytes, theirs: bytes) -> bool:
        compared.append((ours, theirs))
        return ours == theirs

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key in (*KEYS.values(), UNKNOWN_KEY):
        compared.clear()
        keys.find(key)
        assert len(compared) == len(ALL_KEYS)
        assert {len(digest) for pair in compared for digest in pair} == {32}


def test_nothing_shows_a_key(tmp_path: Path) -> None:
    keys = ApiKeys(ALL_KEYS)
    found = keys.find(KEYS[Role.READ])
    assert found is not None
    assert found.digest.hex() not in repr(found)
    assert "canary" not in repr(keys) + repr(vars(keys))


def test_the_commands_of_the_page_make_a_key_and_its_line(tmp_path: Path) -> None:
    page = (ROOT / "docs/security.md").read_text()
    shown = [line[2:] for line in page.splitlines() if line.startswith("$ ") and "sha256sum" in line]
    assert len(shown) == 2
    done = subprocess.run(["/bin/sh", "-c", "; ".join(shown)], capture_output=True, text=True, check=True)
    key, line = done.stdout.splitlines()
    (tmp_path / "keys").write_text(line)
    assert role_in(ApiKeys((), tmp_path / "keys"), key) is Role.INFER
    assert role_in(ApiKeys((f"admin:{key}",)), key) is Role.ADMIN

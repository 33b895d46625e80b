from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from enginewire.access.allowance import Allowance
from enginewire.access.known_callers import InvalidKeys, KnownCallers, read_file
from enginewire.access.roles import Role

HASH = f"sha256:{hashlib.sha256(b'a key').hexdigest()}"
OTHER = f"sha256:{hashlib.sha256(b'another key').hexdigest()}"


def read(tmp_path: Path, *lines: str) -> KnownCallers:
    path = tmp_path / "callers"
    path.write_text("\n".join(lines))
    return read_file(path)


def test_a_line_says_who_it_is_and_what_they_may_have(tmp_path: Path) -> None:
    callers = read(
        tmp_path,
        f"read {HASH} name=chat weight=0.5 rpm_limit=60 min_priority=-3 tenants=yes  # nights",
        "certificate backend.example role=admin max_parallel_requests=8",
        "certificate other.example",
        "tenant * max_waiting_requests=2 max_parallel_tokens=4096 tpm_limit=2147483647",
    )
    (key,) = callers.keys
    assert (key.digest.hex(), key.role, key.name) == (HASH[7:], Role.READ, "chat")
    assert key.names_tenants
    assert key.allowance == Allowance(weight=0.5, rpm_limit=60, min_priority=-3)
    backend, other = callers.certificates["backend.example"], callers.certificates["other.example"]
    assert (backend.role, backend.allowance) == (Role.ADMIN, Allowance(max_parallel_requests=8))
    assert (other.role, other.allowance, other.names_tenants) == (Role.INFER, Allowance(), False)
    assert callers.tenants == {
        "*": Allowance(max_waiting_requests=2, max_parallel_tokens=4096, tpm_limit=2**31 - 1)
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"guest {HASH}", "must be a role and a hash"),
        ("infer", "must be a role and a hash"),
        (f"infer {HASH[:-1]}", "must be a role and a hash"),
        (f"infer {HASH} name=a/ü", "must be ASCII"),
        (f"infer {HASH} name={'n' * 129}", "name: must be 1 to 128 letters"),
        (f"infer {HASH} name=a name=b", "name: given twice"),
        (f"infer {HASH} role=admin", "role: no such field, allowed name=, tenants=, weight="),
        (f"infer {HASH} a-key-that-slipped-in", "a word: no such field"),
        (f"infer {HASH} tenants=maybe", "tenants: must be yes or no"),
        (f"infer {HASH} weight=0", "weight: must be a number from 0.001 to 1000, got '0'"),
        (f"infer {HASH} weight=1e3", "weight: must be a number from 0.001 to 1000, got '1e3'"),
        (f"infer {HASH} rpm_limit=0", "rpm_limit: must be a number from 1 to 2147483647, got '0'"),
        (f"infer {HASH} tpm_limit=2147483648", "tpm_limit: must be a number from 1 to 2147483647"),
        (f"infer {HASH} min_priority=-2147483648", "min_priority: must be a number from -2147483647"),
        (f"infer {HASH} min_priority=urgent", "min_priority: must be a number from -2147483647"),
        ("certificate", "certificate: must be 1 to 128 letters"),
        ("certificate a.example role=guest", "role: must be one of"),
        ("certificate a.example name=b", "name: no such field, allowed role=, tenants=, weight="),
        ("tenant two,names", "tenant: must be 1 to 128 letters"),
        ("tenant a role=admin", "role: no such field, allowed weight="),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_by_its_field(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InvalidKeys) as raised:
        read(tmp_path, f"infer {OTHER}", line)
    assert said in str(raised.value)
    assert "line 2: " in str(raised.value) or "ASCII" in said
    assert "slipped" not in str(raised.value)


@pytest.mark.parametrize("line", [f"infer {HASH}", "certificate a.example", "tenant a"])
def test_a_caller_has_one_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidKeys, match="line 3: the same caller twice; each has one line"):
        read(tmp_path, line, "", f"{line} weight=2")


def test_two_keys_of_one_name_have_the_same_limits(tmp_path: Path) -> None:
    lines = [f"infer {HASH} name=chat weight=2", f"read {OTHER} name=chat weight=2"]
    assert len(read(tmp_path, *lines).keys) == 2
    with pytest.raises(InvalidKeys, match="name=chat: two keys of one name need the same fields"):
        read(tmp_path, lines[0], lines[1].replace("weight=2", "weight=3"))


def test_a_file_has_callers_and_an_end(tmp_path: Path) -> None:
    with pytest.raises(InvalidKeys, match="has no key; each line must be a role and a hash"):
        read(tmp_path, "# nobody yet", "")
    with pytest.raises(InvalidKeys, match="must have at most 1048576 bytes"):
        read(tmp_path, "#" * (2**20 + 1))

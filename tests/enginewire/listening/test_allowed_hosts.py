from __future__ import annotations

import pytest

from enginewire.listening.allowed_hosts import AllowedHosts


@pytest.mark.parametrize(
    ("header", "is_allowed"),
    [
        (None, True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("localhost", True),
        ("myhost:8000", True),
        ("MyHost.:8000", True),
        ("other:8000", False),
        ("", False),
        ("a b", False),
        ("x@localhost.evil", False),
        ("[", False),
    ],
)
def test_on_loopback_only_its_own_names_are_known(header: str | None, is_allowed: bool) -> None:
    assert AllowedHosts("myhost", "127.0.1.1").allows(header) is is_allowed


def test_elsewhere_any_name_is_until_some_are_listed() -> None:
    assert AllowedHosts("0.0.0.0", "0.0.0.0").allows("any.example")
    listed = AllowedHosts("0.0.0.0", "0.0.0.0", ["LLM.example", "*.svc.example"])
    assert listed.allows("llm.example:8000")
    assert listed.allows("a.svc.example")
    assert listed.allows("10.0.0.7:8000")
    assert not listed.allows("svc.example")
    assert not listed.allows("any.example")

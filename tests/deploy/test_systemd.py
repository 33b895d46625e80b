"""The units give each program the time that its end may take, and share one private folder for the socket."""

from __future__ import annotations

import re

import pytest

from enginewire.backend.commands.serve import MARGIN_SECONDS
from enginewire.backend.config import load_serve
from enginewire.server.config.given import load_options
from enginewire.server.lifecycle import CANCEL_GRACE_SECONDS, CLEANUP_SECONDS
from tests.deploy.programs import DEPLOY, of_unit

ENGINE, BACKEND = (DEPLOY / "systemd" / f"enginewire-{name}.service" for name in ("engine", "backend"))


def setting(text: str, name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)
    return value


def test_systemd_waits_as_long_as_the_ends_may_take() -> None:
    engine = load_options(of_unit(ENGINE).arguments).shutdown_timeout + CANCEL_GRACE_SECONDS + CLEANUP_SECONDS
    backend = load_serve(of_unit(BACKEND).arguments).shutdown_timeout + MARGIN_SECONDS
    assert engine + 5 <= float(setting(ENGINE.read_text(), "TimeoutStopSec"))
    assert backend + 5 <= float(setting(BACKEND.read_text(), "TimeoutStopSec"))


def test_the_backend_looks_where_the_engine_listens() -> None:
    socket = load_options(of_unit(ENGINE).arguments).uds
    assert load_serve(of_unit(BACKEND).arguments).target == (f"unix:{socket}",)


@pytest.mark.parametrize("unit", [ENGINE, BACKEND], ids=lambda unit: unit.stem)
def test_the_folder_is_private_and_outlives_the_other_unit(unit) -> None:  # type: ignore[no-untyped-def]
    text = unit.read_text()
    assert setting(text, "RuntimeDirectory") == "enginewire"
    assert setting(text, "RuntimeDirectoryMode") == "0700"
    assert setting(text, "RuntimeDirectoryPreserve") == "yes"
    assert setting(text, "User") == "enginewire"

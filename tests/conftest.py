"""What holds for every test of the project."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.long import USUAL_EXAMPLES

# Several torch processes share the cores: threads that spin while they wait take them from each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# No authorities are in this folder: each client of HTTP that a test makes would read all of this machine's.
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
os.environ.pop("SSL_CERT_FILE", None)

# A busy machine is no failure: how long things take is tested where it matters, with a clock.
all_examples = settings(
    max_examples=USUAL_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("all-examples", all_examples)
settings.register_profile("few-examples", all_examples, max_examples=USUAL_EXAMPLES // 4)
settings.load_profile("few-examples")


def _is_of_this_test(record: logging.LogRecord) -> bool:
    """False for what gRPC brings to the closed loop of a test before, which asyncio logs in the next one."""
    error = record.exc_info[1] if record.exc_info else None
    return not (isinstance(error, RuntimeError) and "PollerCompletionQueue" in record.getMessage())


logging.getLogger("asyncio").addFilter(_is_of_this_test)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: looking through it for garbage would take half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Libraries look for what was left behind when the process ends.
        atexit.register(gc.unfreeze)
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """A part of what was chosen otherwise."""
    parser.addoption("--part", metavar="K/N", default="1/1", help="run only every Nth test from the Kth on")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what belongs to other parts."""
    place, parts = map(int, config.getoption("--part").split("/"))
    chosen = items[place - 1 :: parts]
    mine = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in mine])
    items[:] = chosen


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A private folder whose name is short enough for socket paths, unlike tmp_path under xdist."""
    folder = Path(tempfile.mkdtemp(prefix="ew-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No option of ours is in the environment, and sockets go to a folder of the test."""
    for name in os.environ:
        if name.startswith("ENGINEWIRE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def kept_logs() -> Iterator[None]:
    """What a program makes of the logs of its process ends with the test."""
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.raiseExceptions)
    yield
    root.handlers[:], root.level, logging.raiseExceptions = before

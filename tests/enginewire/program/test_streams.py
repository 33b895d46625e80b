"""What is around every command: standard streams and a quiet end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from enginewire.program import EXIT_INTERRUPTED, EXIT_NOT_READ, program
from tests.patience import PATIENCE_SECONDS


def test_ctrl_c_before_a_command_listens_for_signals_is_no_traceback() -> None:
    @program
    def main(argv: object = None) -> int:
        raise KeyboardInterrupt

    assert main([]) == EXIT_INTERRUPTED == 130


def test_nor_is_ctrl_c_while_a_command_makes_a_class() -> None:
    class Hit:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    @program
    def main(argv: object = None) -> int:
        type("Options", (), {"field": Hit()})
        return 0

    assert main([]) == EXIT_INTERRUPTED


def test_another_error_stays_one() -> None:
    @program
    def main(argv: object = None) -> int:
        raise RuntimeError("a mistake of ours")

    with pytest.raises(RuntimeError, match="a mistake of ours"):
        main([])


def test_ctrl_c_while_a_command_imports_is_no_traceback() -> None:
    code = """
import signal, sys
from importlib.abc import MetaPathFinder

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "enginewire.server.server":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Slow())
# Whatever started the tests may ignore it, as shells do for what runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
from enginewire.cli import main
sys.exit(main(["engine", "--engine", "mocker"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")


@pytest.mark.parametrize(("lines", "unbuffered"), [(3, ""), (30_000, ""), (3, "1")])
def test_a_reader_that_leaves_is_no_traceback(lines: int, unbuffered: str) -> None:
    code = f"""
import sys
from enginewire.program import program

@program
def main(argv=None):
    sys.stdin.readline()
    for _ in range({lines}):
        print("a line")
    return 7

sys.exit(main())
"""
    command = [sys.executable, "-c", code]
    writer = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert writer.stdout
    writer.stdout.close()
    writer.stdout = None
    _, err = writer.communicate("go\n", timeout=PATIENCE_SECONDS)
    # What fits into the buffer fails when the command has its result.
    is_late = lines == 3 and not unbuffered
    assert (writer.returncode, err) == (7 if is_late else EXIT_NOT_READ, "")


def test_a_pipe_that_is_not_the_output_still_raises(capfd: pytest.CaptureFixture[str]) -> None:
    @program
    def main(argv: object = None) -> int:
        raise BrokenPipeError("a socket")

    with pytest.raises(BrokenPipeError, match="a socket"):
        main([])


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_a_null_device(closed: str) -> None:
    code = """
import os, socket, sys
from enginewire.program import program

@program
def main(argv=None):
    print("out"); print("err", file=sys.stderr); sys.stderr.isatty(); sys.stdin.read()
    return 7 if socket.socket().fileno() > 2 else 8

sys.exit(main())
"""
    shell = f'exec "{sys.executable}" -c "$0" {closed}'
    done = subprocess.run(
        ["sh", "-c", shell, code], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 7
    assert done.stdout == (b"" if ">&-" in closed.replace("2>&-", "") else b"out\n")
    assert done.stderr == (b"" if "2>&-" in closed else b"err\n")


def test_a_log_on_a_full_disk_does_not_change_the_exit_code() -> None:
    code = """
import contextlib, sys
from enginewire.program import program

@program
def main(argv=None):
    with contextlib.suppress(OSError):
        print("a line", file=sys.stderr)
    return 3

sys.exit(main([]))
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", code], stderr=full, env=buffered).returncode == 3

"""The command: bad options and engines end it with 2 before anything is opened."""

from __future__ import annotations

import pytest

from enginewire.server.__main__ import EXIT_USAGE, main


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--engine", "nonsense"], "--engine"),
        (["--engine", "mocker", "--port", "1", "--uds", "a.sock"], "exclude each other"),
        (["--engine", "mocker", "--host", "0.0.0.0"], "--allow-insecure"),
        (["--engine", "mocker", "--max-num-seqs", "0"], "max-num-seqs"),
        (["--engine", "mocker", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_bad_options_end_it_with_2_and_a_message(argv, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_an_engine_that_cannot_be_made_ends_it_with_2_and_one_line(capsys, monkeypatch):
    monkeypatch.setattr("enginewire.program.logs.configure_logs", lambda level, style: None)
    assert main(["--engine", "no_such_module:Engine"]) == EXIT_USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("--engine no_such_module:Engine: no module named no_such_module: ")

from __future__ import annotations

import pytest

from conformance.__main__ import EXIT_NOTHING_RAN, main


def test_a_kit_without_checks_never_reports_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == EXIT_NOTHING_RAN
    assert "nothing ran" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--targt", "x"])
    assert stopped.value.code == 2

from __future__ import annotations

import pytest

from enginewire.server.engines.mocker.engine import MockerOptions
from enginewire.server.engines.mocker.options import script_from_json


@pytest.mark.parametrize(
    "text", ["{}", "[1]", '[{"prompt": 1}]', '[{"answer": [1.5]}]', '[{"answer": [true]}]', "no"]
)
def test_a_script_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # JSON's own messages differ
        script_from_json(text)


@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 257},
        {"max_num_batched_tokens": 256},
        {"context_length": 1},
        {"num_kv_blocks": 0},
        {"itl_ms": -1.0},
        {"fault": "step:x"},
        {"fault": "step"},
        {"script": {None: (258,)}},
        {"script": {None: ()}},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^[a-z_, ]+: "):
        MockerOptions(**options)

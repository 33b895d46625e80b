from __future__ import annotations

import pytest

from enginewire.server.failures import InvalidRequest
from enginewire.server.validation.fields import shown
from tests.server.validation.requests_to_check import check, fields


@pytest.mark.parametrize("number", [-0.3, 1.1, 123456.79, 3.4e38])
def test_a_number_of_32_bits_is_shown_as_it_was_written(number: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(fields(sampling_options__top_p=number))
    assert str(caught.value) == f"sampling_options.top_p: out of range, got {number}, allowed (0, 1]"


@pytest.mark.parametrize("number", [-1 / 3, 1e300])
def test_a_number_of_64_bits_is_shown_as_it_is(number: float) -> None:
    assert shown(number) == str(number)

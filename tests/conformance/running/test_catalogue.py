from __future__ import annotations

import pytest

from enginewire.conformance import mutants
from enginewire.conformance.running.catalogue import Catalogue


def test_a_name_is_given_once() -> None:
    catalogue = Catalogue[int](mutants.__name__)
    catalogue.add("b", 2)
    catalogue.add("a", 1)
    with pytest.raises(ValueError, match=r"two of enginewire\.conformance\.mutants are called a"):
        catalogue.add("a", 3)
    assert catalogue.all() == (1, 2)

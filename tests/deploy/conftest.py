"""Engine processes for the tests of what starts them."""

from tests.end_to_end.conftest import folder, launch

__all__ = ["folder", "launch"]

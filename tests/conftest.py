"""What holds for every test of the project."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure: how long things take is tested where it matters, with a clock.
settings.register_profile("enginewire", deadline=None)
settings.load_profile("enginewire")

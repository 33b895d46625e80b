"""What holds for every test of the project."""

from __future__ import annotations

import os

from hypothesis import settings

# Several torch processes share the cores: threads that spin while they wait take them from each other.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A busy machine is no failure: how long things take is tested where it matters, with a clock.
settings.register_profile("enginewire", deadline=None)
settings.load_profile("enginewire")

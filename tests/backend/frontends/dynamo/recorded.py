"""What the frontend of ai-dynamo 1.6.1 sent to a worker, as a worker has seen it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REQUESTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())

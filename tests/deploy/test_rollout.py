"""Pods as a cluster runs them, in networks of our own: nobody loses a request when they are replaced."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.long import long


@long
def test_all_pods_are_replaced_and_no_request_is_lost() -> None:
    argv = [sys.executable, "-m", "tests.deploy.rollout", "--only", "replaced"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    *rows, last = map(json.loads, done.stdout.splitlines())
    # It says so where nobody may have a network of their own.
    if "skipped" not in last:
        assert last == {"scenes": 1, "lost": 0, "killed": 0, "wrong": 0}
        assert rows[0]["whole"]

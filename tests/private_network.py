"""A network of a program's own, in which it may do everything: namespaces, cables, mounts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

PRIVATE: Final = 'mount -t tmpfs none /run && ip link set lo up && exec "$@"'
INSIDE: Final = "--inside"


def in_a_private_network(module: str, arguments: Sequence[str]) -> int:
    """The exit code of `python -m MODULE --inside ARGUMENTS` there; 0 where there is none, which is printed.

    As root, or wherever the kernel lets users have one (`unshare --net`). It has a /run of its own.
    """
    if missing := [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]:
        return _skipped(f"no {' and no '.join(missing)} here")
    own = ["unshare", "--net", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    inside = [*own, "sh", "-c", PRIVATE, "sh"]
    try_out = subprocess.run(
        [*inside, "ip", "netns", "add", "x"], capture_output=True, text=True, check=False
    )
    if try_out.returncode:
        return _skipped(f"neither root nor a private network here: {try_out.stderr.strip()}")
    return subprocess.run([*inside, sys.executable, "-m", module, INSIDE, *arguments], check=False).returncode


def _skipped(why: str) -> int:
    print(json.dumps({"skipped": why}))
    return 0

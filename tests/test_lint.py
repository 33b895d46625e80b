"""`make lint` refuses what runs code of somebody else."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.repository import ROOT

REFUSED = """
import marshal, pickle, shelve
import numpy as np, torch, yaml
from torch import load

eval(said)
exec(said)
marshal.loads(said)
pickle.loads(said)
shelve.open(said)
yaml.load(said, yaml.Loader)
np.load(said, allow_pickle=True)
torch.load(said)
""".strip().splitlines()


def test_no_code_of_ours_can_run_what_it_reads() -> None:
    argv = [sys.executable, "-m", "ruff", "check", "--output-format=json", "--select=S,TID251"]
    place = ROOT / "engine_server" / "enginewire" / "torch_engine" / "planted.py"
    done = subprocess.run(
        [*argv, f"--stdin-filename={place}", "-"],
        input="\n".join(REFUSED),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    refused = {REFUSED[each["location"]["row"] - 1] for each in json.loads(done.stdout)}
    assert refused >= {line for line in REFUSED if "(" in line or line == "from torch import load"}

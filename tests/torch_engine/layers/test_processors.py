"""Threads of one core count once."""

from __future__ import annotations

import os

from enginewire.torch_engine.layers.processors import num_cores


def test_threads_of_one_core_count_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 4})
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert num_cores(tmp_path) == 3, "cores 0 and 1, and processor 4, of which the system tells nothing"


def test_a_system_that_tells_nothing_counts_processors(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5})
    assert num_cores(tmp_path) == 3

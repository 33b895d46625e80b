from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from enginewire.backend.bench.workload import (
    InvalidDataset,
    Job,
    arrivals,
    dataset_jobs,
    random_token_jobs,
    random_word_jobs,
)


@given(st.integers(1, 50), st.floats(0.1, 1000), st.integers())
def test_arrivals_begin_at_once_and_never_go_back(count: int, rate: float, seed: int) -> None:
    times = arrivals(count, rate, random.Random(seed))
    assert len(times) == count
    assert times[0] == 0
    assert times == sorted(times)
    assert times == arrivals(count, rate, random.Random(seed))


def test_arrivals_are_a_poisson_process_of_the_asked_rate() -> None:
    times = arrivals(20_001, 50.0, random.Random(1))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    # Both are means over 20,000 exponential gaps: five standard errors are 3.5 % and 5 %.
    assert mean == pytest.approx(0.02, rel=0.035)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.3679, rel=0.05)


def test_without_a_rate_all_arrive_at_once() -> None:
    assert arrivals(3, None, random.Random(0)) == [0.0, 0.0, 0.0]


def test_invented_prompts_have_the_asked_length_and_follow_from_the_seed() -> None:
    jobs = random_token_jobs(5, 7, 9, 100, {3, 4}, seed=1)
    assert {len(job.token_ids) for job in jobs} == {7}
    assert {job.max_tokens for job in jobs} == {9}
    ids = {token_id for job in jobs for token_id in job.token_ids}
    assert not ids & {3, 4}
    assert max(ids) < 100
    assert jobs == random_token_jobs(5, 7, 9, 100, {3, 4}, seed=1)
    assert jobs != random_token_jobs(5, 7, 9, 100, {3, 4}, seed=2)
    assert {len(job.text.split()) for job in random_word_jobs(5, 7, 9, seed=1)} == {7}


def written(folder: Path, *entries: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n\n")
    return path


def test_a_dataset_may_mix_every_kind_of_prompt(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"prompt": "abc", "max_tokens": 5},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]},
        {"token_ids": [1, 2], "output_len": 6},
    )
    assert set(dataset_jobs(path, 3, 99, seed=0)) == {
        Job(5, text="abc"),
        Job(99, messages=(("system", "s"), ("user", "u"))),
        Job(6, token_ids=(1, 2)),
    }


def test_sharegpt_gives_its_first_turns(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    conversation = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]
    path.write_text(json.dumps([{"id": "x", "conversations": conversation}]))
    assert dataset_jobs(path, 2, 8, seed=0) == [Job(8, messages=(("user", "hi"),))] * 2


def test_a_short_dataset_is_used_again_in_the_order_of_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, *({"prompt": f"p{number}"} for number in range(8)))
    jobs = dataset_jobs(path, 20, 1, seed=3)
    assert jobs[:8] == jobs[8:16]
    assert len(set(jobs)) == 8
    assert jobs == dataset_jobs(path, 20, 1, seed=3)
    assert jobs != dataset_jobs(path, 20, 1, seed=4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no prompts"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "line 1: not an object"),
        ("{}", "line 1: needs one of"),
        ('{"prompt": ""}', "line 1: needs one of"),
        ('\n{"prompt": "x", "max_tokens": 0}', "line 2: max_tokens"),
        ('{"prompt": "x", "max_tokens": true}', "line 1: max_tokens"),
        ('{"token_ids": [1, -1]}', "line 1: needs one of"),
        ('{"messages": [{"role": "owl", "content": "x"}]}', "line 1: a message needs role and content"),
        ('[{"conversations": [{"from": "human"}]}]', "item 0: a message needs from and value"),
    ],
)
def test_what_is_no_dataset_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidDataset, match=message):
        dataset_jobs(path, 1, 1, seed=0)

"""The connection to a living engine is cut, wherever in the bytes of an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer
from tests.backend.asking import hear
from tests.chaos.link import Link
from tests.end_to_end.chaos.stage import answer_of, engines, migrations, replaying
from tests.long import long_but
from tests.patience import PATIENCE_SECONDS

OFFSETS = range(0, 2000, 53)


def request() -> pb.PreprocessedRequest:
    """Seeded, with log-probabilities, so that most messages are more than token ids."""
    asked = pb.PreprocessedRequest(token_ids=b"where it was cut")
    asked.stop_conditions.max_tokens = 24
    asked.stop_conditions.ignore_eos = True
    asked.sampling_options.temperature = 1.0
    asked.sampling_options.seed = 5
    asked.output_options.logprobs = 1
    return asked


@pytest.mark.parametrize("by_reset", long_but([False], [False, True]), ids=["goodbye", "reset"])
@pytest.mark.parametrize("multiplexed", long_but([True], [True, False]), ids=["multiplexed", "generate"])
async def test_a_cut_anywhere_changes_nothing(folder: Path, multiplexed: bool, by_reset: bool) -> None:
    vocabulary = Vocabulary(Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()))
    async with (
        engines(folder, 1) as slots,
        Link(slots[0].target) as proxy,
        replaying([proxy.target], vocabulary, multiplexed=multiplexed) as backend,
    ):
        truth = answer_of(await hear(backend, request()))
        num_migrated = 0
        for offset in OFFSETS:
            proxy.cut_after(offset, by_reset=by_reset)
            async with asyncio.timeout(PATIENCE_SECONDS):
                heard = await hear(backend, request())
            assert answer_of(heard) == truth, f"cut after {offset} bytes"
            num_migrated += len(migrations(heard))
    assert proxy.num_cuts > len(OFFSETS) // 2
    assert num_migrated > len(OFFSETS) // 4

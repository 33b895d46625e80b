"""What a prefill core hands over, a decode core goes on with as if it had computed it itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import torch
import transformers

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.handoff.options import TransferOptions
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from enginewire.torch_engine.requests.limits import RequestLimits
from enginewire.torch_engine.requests.reader import RequestReader
from enginewire.torch_engine.requests.sequence import HandedOver
from tests.torch_engine.models.huggingface.configs import SERVED, tiny_config
from tests.torch_engine.tiny import VOCAB, Answer, CoreUnderTest, greedy

PROMPT = [Random(1).randrange(2, VOCAB) for _ in range(37)]


class Releases:
    """Counts how often memory was given back."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def with_role(core: CoreUnderTest, role: str) -> CoreUnderTest:
    limits = RequestLimits(
        core.loaded.config.vocab_size,
        core.loaded.context_length,
        core.core.scheduler.pool.capacity,
        takes_any_length=core.core.scheduler.takes_any_length,
        role=role,  # type: ignore[arg-type]  # a plain str
    )
    core.reader = RequestReader(limits, core.loaded.defaults, 0)
    return core


def computed(core: CoreUnderTest, request: pb.PreprocessedRequest) -> bytearray:
    """The KV that a prefill core hands over, after all of its blocks are free again."""
    core.add(request)
    core.run()
    return bytearray(core.handed_over.pop()[1])


def continued(
    core: CoreUnderTest, request: pb.PreprocessedRequest, payload: bytearray
) -> tuple[Answer, Releases, GenerateContext]:
    """Queue the other half of a request."""
    half = pb.PreprocessedRequest()
    half.CopyFrom(request)
    half.prefill_result.handoff.params = b"any"
    context = GenerateContext(f"d{len(core.answers)}")
    accepted = core.reader.read(half, context, now=float(len(core.answers)))
    releases = Releases()
    accepted.handed_over = HandedOver(len(request.token_ids) - 1, payload, releases)
    core.answers[context] = Answer(
        num_resumed={choice.index: len(choice.generated_token_ids) for choice in request.resume.choices}
    )
    core.core.add(accepted)
    return core.answers[context], releases, context


def variants() -> Iterator[pb.PreprocessedRequest]:
    """Greedy, seeded, penalised, with log-probabilities, several choices, best of several, resumed, short."""
    yield greedy(PROMPT, 12)
    yield greedy(PROMPT[:1], 6)
    yield greedy(PROMPT[:17], 1)
    seeded = greedy(PROMPT, 10, n=3)
    seeded.sampling_options.temperature = 1.2
    seeded.sampling_options.seed = 11
    yield seeded
    penalised = greedy(PROMPT, 14)
    penalised.sampling_options.repetition_penalty = 1.8
    penalised.sampling_options.presence_penalty = 1.5
    penalised.output_options.logprobs = 3
    yield penalised
    best = greedy(PROMPT, 6)
    best.sampling_options.MergeFrom(pb.SamplingOptions(temperature=1.5, seed=3, best_of=4))
    yield best
    outside = greedy(PROMPT, 9, n=2)
    outside.bypass_prefix_cache = True
    yield outside


def same(found: Answer, wanted: Answer) -> None:
    assert found.error is None
    assert found.tokens == wanted.tokens
    for ours, theirs in zip(found.logprobs, wanted.logprobs, strict=True):
        assert ours.top_token_ids == theirs.top_token_ids
        assert ours.top_logprobs == pytest.approx(list(theirs.top_logprobs), abs=1e-4)
    assert [t.finish_reason for t in found.terminals] == [t.finish_reason for t in wanted.terminals]


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_two_cores_say_what_one_says_whatever_their_blocks(load, family):
    whole = load(family)
    prefill = with_role(load(family, block_size=4, max_num_batched_tokens=8), "prefill")
    decode = with_role(load(family, block_size=8), "decode")
    for request in variants():
        answer, releases, _ = continued(decode, request, computed(prefill, request))
        before = decode.core.counters.steps
        decode.run()
        same(answer, whole.answer(request))
        assert releases.count == 1
        longest = max(map(len, answer.tokens.values()))
        assert decode.core.counters.steps - before == longest, "nothing of the prompt was computed again"


def test_what_lies_behind_a_window_is_handed_over_too(load):
    whole = load("mistral")
    prefill = with_role(load("mistral", block_size=4, max_num_batched_tokens=8), "prefill")
    decode = with_role(load("mistral", block_size=4), "decode")
    for length in (37, 17):  # the second finds its beginning in the cache of the decode core
        request = greedy(PROMPT[:length], 6)
        answer, _, _ = continued(decode, request, computed(prefill, request))
        decode.run()
        same(answer, whole.answer(request))


def test_what_is_handed_over_and_longer_than_the_cache_is_computed_again(load):
    whole = load("mistral")
    prefill = with_role(load("mistral"), "prefill")
    decode = with_role(load("mistral", num_kv_blocks=8, block_size=4, max_num_batched_tokens=8), "decode")
    for length in (
        37,
        33,
        32,
        17,
    ):  # one less is handed over, and each has its last token to compute
        request = greedy(PROMPT[:length], 6)
        request.bypass_prefix_cache = True
        before = decode.core.counters.steps
        answer, releases, _ = continued(decode, request, computed(prefill, request))
        decode.run()
        same(answer, whole.answer(request))
        assert releases.count == 1
        assert (decode.core.counters.steps - before == 6) == (length <= 32)


@pytest.mark.parametrize("model_type", ["gemma2", "deepseek_v3"])
def test_models_of_transformers_hand_over_too(model_type, tmp_path):
    torch.manual_seed(5)
    network = transformers.AutoModelForCausalLM.from_config(tiny_config(model_type, SERVED[model_type]))
    for name, parameter in network.named_parameters():
        torch.nn.init.normal_(parameter, mean=float("norm" in name and name.endswith("weight")), std=0.25)
    network.save_pretrained(tmp_path)

    def core(role: str, **options: object) -> CoreUnderTest:
        chosen = TorchEngineOptions(
            model=str(tmp_path), device="cpu", dtype="float32", max_num_seqs=4, num_threads=1, **options
        )
        return with_role(CoreUnderTest(load_engine(chosen, lambda phase, done: None)), role)

    whole, prefill = core("aggregated"), core("prefill", max_num_batched_tokens=8)
    decode = core("decode", block_size=5)
    request = greedy(PROMPT[:23], 10)
    answer, _, _ = continued(decode, request, computed(prefill, request))
    decode.run()
    same(answer, whole.answer(request))


@pytest.mark.parametrize("numbers", ["bfloat16 auto", "float32 bfloat16", "float32 int8_per_token_head"])
def test_smaller_numbers_travel_bit_for_bit(numbers, load):
    options = dict(zip(("dtype", "kv_cache_dtype"), numbers.split(), strict=True))
    prefill, decode = [with_role(load("llama", **options), role) for role in ("prefill", "decode")]
    request = greedy(PROMPT, 3)
    payload = computed(prefill, request)
    continued(decode, request, payload)
    decode.step()
    (sequence,) = decode.core.scheduler.running
    assert decode.core._runner.read_kv(sequence, len(PROMPT) - 1) == payload
    decode.run()


def test_a_prefix_that_the_prefill_engine_has_cached_is_handed_over_and_counted(load):
    prefill, whole = with_role(load("llama"), "prefill"), load("llama")
    decode = with_role(load("llama"), "decode")
    request = greedy(PROMPT, 8)
    first = computed(prefill, request)
    prefill.add(request)
    prefill.step()
    ended, payload = prefill.handed_over.pop()
    assert ended.num_cached_tokens == 32
    assert numbers(payload) == pytest.approx(numbers(first), abs=1e-4)
    answer, _, _ = continued(decode, request, bytearray(payload))
    decode.run()
    same(answer, whole.answer(request))


def numbers(payload: bytearray | memoryview) -> list[float]:
    return torch.frombuffer(bytearray(payload), dtype=torch.float32).tolist()


def test_a_decode_engine_copies_only_what_it_has_not_cached(load):
    prefill, decode, whole = (
        with_role(load("llama"), "prefill"),
        with_role(load("llama"), "decode"),
        load("llama"),
    )
    request = greedy(PROMPT, 8)
    payload = computed(prefill, request)
    continued(decode, request, payload)
    decode.run()
    # The blocks that are cached are not looked at again: damage there must not show.
    size = len(payload)
    damaged = bytearray(size)
    answer, _, _ = continued(decode, request, damaged)
    decode.step()
    decode.run()
    assert answer.error is None
    assert answer.tokens != whole.answer(request).tokens, "the tail comes from the hand-off"
    assert decode.core.scheduler.pool.num_cached == 2


def test_a_preempted_sequence_computes_its_prompt_itself(load):
    prefill, whole = with_role(load("llama"), "prefill"), load("llama")
    decode = with_role(load("llama", num_kv_blocks=6, max_model_len=90), "decode")
    requests = [greedy(PROMPT[: 30 + i], 40) for i in range(2)]
    answers = [continued(decode, request, computed(prefill, request)) for request in requests]
    decode.run()
    assert decode.core.scheduler.num_preemptions > 0
    for request, (answer, releases, _) in zip(requests, answers, strict=True):
        same(answer, whole.answer(request))
        assert releases.count == 1


def test_a_failed_batch_is_repeated_alone_with_what_was_handed_over(load, monkeypatch):
    prefill, whole = with_role(load("llama"), "prefill"), load("llama")
    decode = with_role(load("llama"), "decode")
    requests = [greedy(PROMPT, 6, n=2), greedy(PROMPT[:20], 6)]
    answers = [continued(decode, request, computed(prefill, request)) for request in requests]
    runner = decode.core._runner  # type: ignore[attr-defined]
    forward = runner.forward
    sizes: list[int] = []

    def fails_in_company(batch, unread):
        sizes.append(len(batch))
        if len(batch) > 1 and len(sizes) == 1:
            raise RuntimeError("a fault on purpose")
        return forward(batch, unread)

    monkeypatch.setattr(runner, "forward", fails_in_company)
    decode.run()
    assert sizes[:4] == [3, 1, 1, 1]
    for request, (answer, releases, _) in zip(requests, answers, strict=True):
        same(answer, whole.answer(request))
        assert releases.count == 1


def test_an_aborted_request_gives_the_memory_back_wherever_it_was(load):
    prefill = with_role(load("llama"), "prefill")
    decode = with_role(load("llama", max_num_seqs=1), "decode")
    request = greedy(PROMPT, 6)
    payload = computed(prefill, request)
    runs, waits = continued(decode, request, payload), continued(decode, request, payload)
    decode.step()
    assert (runs[1].count, waits[1].count) == (1, 0)
    decode.core.live.abort(waits[2])
    decode.run()
    assert (runs[1].count, waits[1].count) == (1, 1)


def test_what_an_earlier_owner_left_in_the_blocks_does_not_show(load):
    prefill, whole = with_role(load("llama"), "prefill"), load("llama")
    decode = with_role(load("llama", compile_kernels=False), "decode")
    cache = decode.core._runner.cache  # type: ignore[attr-defined]
    for stored in (*cache.keys, *cache.values):
        stored.fill_(float("nan"))
    # Side by side the shorter one is padded to the longer one, beyond what it has.
    requests = [greedy(PROMPT[:35], 4), greedy(PROMPT, 4)]
    answers = [continued(decode, request, computed(prefill, request))[0] for request in requests]
    decode.run()
    for request, answer in zip(requests, answers, strict=True):
        same(answer, whole.answer(request))


def test_a_prompt_whose_kv_cannot_be_read_fails_alone(load, monkeypatch):
    prefill = with_role(load("llama"), "prefill")
    runner = prefill.core._runner  # type: ignore[attr-defined]
    read = runner.read_kv
    monkeypatch.setattr(
        runner,
        "read_kv",
        lambda sequence, count: read(sequence, count) if count != 20 else 1 // 0,
    )
    bad, good = prefill.add(greedy(PROMPT[:21], 4)), prefill.add(greedy(PROMPT, 4))
    prefill.run()
    assert prefill.answers[bad].error is not None
    assert prefill.answers[good].error is None
    assert [request.context for request, _ in prefill.handed_over] == [good]


@dataclass
class Folders:
    """Model folders that differ in one thing."""

    root: Path
    made: list[Path] = field(default_factory=list)

    def copy(self, source: Path, change: Callable[[Path], None] = lambda path: None) -> Path:
        target = self.root / f"copy{len(self.made)}"
        target.mkdir()
        for file in source.iterdir():
            (target / file.name).write_bytes(file.read_bytes())
        change(target)
        self.made.append(target)
        return target


def layout_digest(folder: Path, **options: object) -> str:
    given = {"device": "cpu", "dtype": "float32", "num_threads": 1, "max_num_seqs": 2, **options}
    transfer = TransferOptions(folder / "never opened")
    chosen = TorchEngineOptions(model=str(folder), role="decode", transfer=transfer, **given)
    layout = load_engine(chosen, lambda phase, done: None).kv_layout
    assert layout is not None
    return layout.digest


def test_only_the_same_model_used_in_the_same_way_has_the_same_layout(model_folder, tmp_path):
    folders = Folders(tmp_path)

    def one_weight(path: Path) -> None:
        file = path / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))

    original = folders.copy(model_folder("llama"))
    same_one = layout_digest(original)
    assert layout_digest(folders.copy(original), block_size=4) == same_one
    others = [
        layout_digest(folders.copy(original, one_weight)),
        layout_digest(original, dtype="bfloat16"),
        layout_digest(original, kv_cache_dtype="bfloat16"),
        layout_digest(original, kv_cache_dtype="int8_per_token_head"),
        layout_digest(original, quantization="int8"),
    ]
    assert len({same_one, *others}) == 6

"""How long the Decoder takes per token, on one core.

    python benchmarks/stream/decoder.py [--tokenizer tokenizer.json] [--json]

Without a file it trains a byte-level BPE tokenizer on the standard library's own source code. Every row
is the best of several rounds over the same ids, so that other load on the machine shows less.

With --json it also measures the whole way, as `transport.py` does: engine server in another process, 256
multiplexed streams, detokenized, four stop strings, one consumer per request: an asyncio task, or a function
called inline. The last line has `ratio_table_to_decode_stream` (English), its like for Japanese,
`ratio_1000_stops_to_4` (one id a step), `end_to_end_tokens_per_s_asyncio_256` and `…_inline_256`. With
`per_core` in their names they count the processor time of the consuming process: the server may be slower.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transport import end_to_end, engine_on_socket, inline, measure as tokens_per_second

from enginewire.backend.decoding.decoder import Decoder
from enginewire.backend.decoding.stop_conditions import StopConditions
from enginewire.backend.decoding.vocabulary import Vocabulary
from enginewire.program import event_loop

NUM_TOKENS = 20_000
ROUNDS = 7
STREAMS = 256
END_TO_END_TOKENS = 2000
END_TO_END_ROUNDS = 3
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。🙈 "


def trained(corpus: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=16_000,
        special_tokens=["<|eos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.splitlines(), trainer)
    return tokenizer


def library_text() -> str:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "\n".join(path.read_text("utf-8") for path in sorted(folder.glob("a*.py")))


def nanoseconds_per_token(rows: dict[str, Callable[[], None]], num_tokens: int) -> dict[str, float]:
    """The best of several rounds, in turn, so that a busy moment of the machine hits no row alone."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(ROUNDS):
        for name, run in rows.items():
            begin = time.perf_counter_ns()
            run()
            best[name] = min(best[name], time.perf_counter_ns() - begin)
    return {name: round(nanoseconds / num_tokens, 1) for name, nanoseconds in best.items()}


def table(vocabulary: Vocabulary, ids: list[int]) -> Callable[[], None]:
    def run() -> None:
        step = vocabulary.detokenizer().step
        for token_id in ids:
            step(token_id)

    return run


def library_stream(tokenizer: Tokenizer, ids: list[int]) -> Callable[[], None]:
    def run() -> None:
        stream = decoders.DecodeStream(skip_special_tokens=True)
        for token_id in ids:
            stream.step(tokenizer, token_id)

    return run


def whole_decoder(vocabulary: Vocabulary, ids: list[int], num_stops: int, chunk: int) -> Callable[[], None]:
    """One decoder per stream, served in turn, `chunk` ids at a time."""
    conditions = StopConditions(
        stop=tuple(f"\n\nUser {number}:" for number in range(num_stops)), eos_token_ids=frozenset({0})
    )
    chunks = [ids[begin : begin + chunk] for begin in range(0, len(ids), chunk)]

    def run() -> None:
        decoders = [Decoder(vocabulary, conditions) for _ in range(STREAMS)]
        for place, token_ids in enumerate(chunks):
            decoders[place % STREAMS].process(token_ids)

    return run


def measure(tokenizer: Tokenizer, vocabulary: Vocabulary, english: str) -> dict[str, float]:
    ids = [token_id for token_id in tokenizer.encode(english).ids if token_id][:NUM_TOKENS]
    japanese = tokenizer.encode(JAPANESE * 1000).ids[:NUM_TOKENS]
    rows = {
        "DecodeStream, English": library_stream(tokenizer, ids),
        f"{vocabulary.kind.value} table, English": table(vocabulary, ids),
        "DecodeStream, Japanese": library_stream(tokenizer, japanese),
        f"{vocabulary.kind.value} table, Japanese": table(vocabulary, japanese),
    }
    for chunk in (1, 8):
        for num_stops in (0, 4, 100, 1000):
            name = f"Decoder, {num_stops} stops, {chunk} ids a step"
            rows[name] = whole_decoder(vocabulary, ids, num_stops, chunk)
    return nanoseconds_per_token(rows, len(ids))


async def measure_end_to_end() -> dict[str, float]:
    """Tokens per second, by the clock and by processor time here, of both kinds of consumers; best rounds."""
    paths = {"asyncio": end_to_end, "inline": inline}
    best = dict.fromkeys([f"{kind}{name}" for kind in ("", "per_core_") for name in paths], 0.0)
    with tempfile.TemporaryDirectory() as folder:
        async with engine_on_socket(Path(folder), STREAMS) as engine:
            for _ in range(END_TO_END_ROUNDS):
                for name, path in paths.items():
                    begin = time.process_time()
                    rate = await tokens_per_second(path, engine, STREAMS, END_TO_END_TOKENS)
                    per_core = STREAMS * END_TO_END_TOKENS / (time.process_time() - begin)
                    best[name] = max(best[name], rate)
                    best[f"per_core_{name}"] = max(best[f"per_core_{name}"], per_core)
    return best


def figures(results: dict[str, float], kind: str) -> dict[str, float]:
    """What the project promises, as ratios of one run where it can be."""
    stops = [results[f"Decoder, {number} stops, 1 ids a step"] for number in (1000, 4)]
    table_ratios = {
        language: round(results[f"DecodeStream, {language}"] / results[f"{kind} table, {language}"], 2)
        for language in ("English", "Japanese")
    }
    return {
        "ratio_table_to_decode_stream": table_ratios["English"],
        "ratio_table_to_decode_stream_japanese": table_ratios["Japanese"],
        "ratio_1000_stops_to_4": round(stops[0] / stops[1], 2),
        **{
            f"end_to_end_tokens_per_s_{name}_{STREAMS}": round(rate)
            for name, rate in event_loop.run(measure_end_to_end()).items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument("--json", action="store_true", help="print one line of JSON at the end")
    arguments = parser.parse_args()
    english = library_text()
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer)) if arguments.tokenizer else trained(english)
    begin = time.perf_counter_ns()
    vocabulary = Vocabulary(tokenizer)
    load_ms = (time.perf_counter_ns() - begin) / 1e6
    print(f"{vocabulary.size} ids, {vocabulary.kind.value} table built and checked in {load_ms:.0f} ms")
    results = measure(tokenizer, vocabulary, english)
    for name, nanoseconds in results.items():
        print(f"{nanoseconds:9.1f} ns/token  {name}")
    if arguments.json:
        promised = figures(results, vocabulary.kind.value)
        whole = {"vocabulary": vocabulary.size, "load_ms": load_ms, "ns_per_token": results, **promised}
        print(json.dumps(whole))


if __name__ == "__main__":
    main()

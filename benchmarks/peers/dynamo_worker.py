"""Dynamo's frontend over our mocker, as `enginewire dynamo` brings it there, beside Dynamo's own mocker.

    VENV/bin/python benchmarks/peers/dynamo_worker.py [--streams 64] [--tokens 256] [--rounds 3] [--itl-ms 10]

VENV has Dynamo and this project, as `make dynamo-test` makes it (.venv-dynamo). Each side is a frontend of
its own with file discovery and TCP. Behind ours are two processes, the worker and the engine; Dynamo's mocker
is one, written in Rust, and draws other tokens. Both engines are as fast as they can, or make a token about
every --itl-ms milliseconds. The client and the figures are those of `openai_http.py`, but that
`behind_us_per_token` is the processor time of all that is behind the frontend. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from dynamo_peer import MODEL, free_port, meeting_in, process, wait_for_model, write_model
from openai_http import Side, measure

DYNAMO_STEP_MS = 6.5
"""About what a step of Dynamo's mocker takes at 64 sequences, without a ratio."""
START_SECONDS = 60.0
SEQUENCES = "1024"
WORDS = range(258, 4096)
"""Ids that Dynamo's mocker may draw and a tokenizer of bytes does not have."""


@contextmanager
def side(name: str, folder: Path, workers: Mapping[str, list[str]]) -> Iterator[Side]:
    """A frontend and what is behind it, the programs by their names, in the order of their start."""
    folder.mkdir()
    port = free_port()
    environment = meeting_in(folder) | {"DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_LOG": "warn"}
    frontend = ["-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        started = []
        for arguments in (frontend, *workers.values()):
            started.append(stack.enter_context(process([sys.executable, *arguments], environment, log)))
            if "--uds" in arguments:
                wait_for_file(Path(arguments[arguments.index("--uds") + 1]))
        if not wait_for_model(port):
            raise SystemExit((folder / "log").read_text() + f"{name}: the frontend found no worker")
        yield Side(name, port, [each.pid for each in started])


def wait_for_file(path: Path) -> None:
    """Until a server listens there."""
    begin = time.monotonic()
    while not path.exists():
        if time.monotonic() - begin > START_SECONDS:
            raise SystemExit(f"nothing listens at {path}")
        time.sleep(0.05)


def ours(folder: Path, itl_ms: float) -> dict[str, list[str]]:
    """The mocker behind our server, and the worker."""
    socket = str(folder / "enginewire" / "engine.sock")
    engine = f"-m enginewire.server --engine mocker --mocker-itl-ms {itl_ms} --served-model-name {MODEL}"
    engine += f" --max-num-seqs {SEQUENCES} --uds {socket} --log-level error"
    worker = f"-m enginewire dynamo --target unix:{socket} --served-model-name {MODEL}"
    return {"engine": engine.split(), "worker": worker.split()}


def complete_model(folder: Path) -> None:
    """An id that is no text makes no event, so whatever is drawn is some. And Dynamo's mocker wants sizes."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"] |= {f"\u0120w{number}": number for number in WORDS}
    path.write_text(json.dumps(tokenizer))
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": WORDS.stop, "hidden_size": 64, "num_hidden_layers": 1, "torch_dtype": "bfloat16"}
    config |= {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
    (folder / "config.json").write_text(json.dumps(config))


def theirs(folder: Path, itl_ms: float) -> dict[str, list[str]]:
    """Dynamo's mocker, with the tokenizer of ours."""
    ratio = DYNAMO_STEP_MS / itl_ms if itl_ms else 0
    mocker = f"-m dynamo.mocker --model-path {folder}/model --model-name {MODEL} --speedup-ratio {ratio}"
    mocker += f" --max-num-seqs {SEQUENCES} --max-num-batched-tokens 65536 --discovery-backend file"
    return {"mocker": mocker.split()}


async def compare(sides: list[Side], arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """The medians of interleaved rounds."""
    rounds: dict[str, list[dict[str, float]]] = {each.name: [] for each in sides}
    for each in sides:
        await measure(each, arguments.streams, 16)
    for _ in range(arguments.rounds):
        for each in sides:
            figures, _ = await measure(each, arguments.streams, arguments.tokens)
            figures["behind_us_per_token"] = figures.pop("engine_us_per_token")
            figures["frontend_us_per_token"] = figures.pop("server_us_per_token")
            rounds[each.name].append(figures)
    return {
        name: {key: round(median(each[key] for each in measured), 2) for key in measured[0]}
        for name, measured in rounds.items()
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each stream")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--itl-ms", type=float, default=0.0, help="of the engines; 0 is as fast as they can")
    parser.add_argument("--json", action="store_true", help="print nothing but the line of JSON")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ew-")))
        write_model(folder / "model")
        complete_model(folder / "model")
        sides = [
            stack.enter_context(side("enginewire", folder / "enginewire", ours(folder, arguments.itl_ms))),
            stack.enter_context(side("dynamo", folder / "dynamo", theirs(folder, arguments.itl_ms))),
        ]
        medians = asyncio.run(compare(sides, arguments))
    for key in () if arguments.json else medians["dynamo"]:
        print(*(f"{figures[key]:12,.1f}" for figures in medians.values()), f"  {key}")
    ratio = medians["enginewire"]["tokens_per_s"] / medians["dynamo"]["tokens_per_s"]
    print(json.dumps({**medians, "ratio_to_dynamo": round(ratio, 2)}))


if __name__ == "__main__":
    main()

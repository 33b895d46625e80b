"""Every option of the engine server: flag, environment variable, config key, default and meaning.

Names follow the flags people know from vLLM; the contract's own names are in the `contract=` notes.
Knows nothing about engines: an option that only one engine understands says so.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field, which is no shared mutable default.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from enginewire.addresses import SHOWN_KV_FOLDER, default_kv_folder, default_socket, shown_socket, wants_tcp
from enginewire.options import Loaded, OptionError, computed, load, option
from enginewire.server.config.our_engines import NAMES, OurEngine
from enginewire.server.config.rules import RULES
from enginewire.server.handoff.options import Role

DEFAULT_PORT: Final = 50051
MAX_INT32: Final = 2**31 - 1

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["none", "int8"]
Pooling = Literal["auto", "last", "mean", "cls"]
GuidedBackend = Literal["auto", "xgrammar", "llguidance"]
LogFormat = Literal["auto", "pretty", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of `enginewire-server`. Raises OptionError for combinations that make no sense.

    The server listens on TCP when `port` is set, else on the Unix socket `uds`.
    """

    model: str = option(
        "builtin:demo",
        "model to serve: a folder, a hub name such as owner/model, or builtin:demo",
        aliases=("--model-path", "--model-id"),
        positional=True,
        heading="model",
        contract="EngineConfig.model",
    )
    served_model_name: tuple[str, ...] = option(
        (),
        "name that clients use for the model; the first is shown, the others are aliases",
        contract="EngineConfig.served_model_name",
    )
    engine: str = option(OurEngine.TORCH.value, f"engine to run: {NAMES}, or module:Class of your own")
    role: Role = option(
        "aggregated",
        "part in disaggregated serving: prefill computes prompts and hands them over, decode goes on",
        contract="EngineConfig.role",
    )
    device: Device = option("auto", "where the model runs")
    dtype: DType = option("auto", "type of the weights and of the KV cache")
    quantization: Quantization = option(
        "none", "form of the weights while serving; int8 is faster and changes answers (CPU only)"
    )
    compile_kernels: bool = option(
        True, "run small kernels that the machine's C++ compiler builds once, if it has one (CPU only)"
    )
    batch_invariant: bool = option(
        False,
        "outputs do not depend on the batch, bit for bit; slower",
        contract="Capabilities.batch_invariant",
    )
    async_scheduling: bool = option(
        True, "give the GPU its next step before the tokens of this one are read; changes nothing on a CPU"
    )
    seed: int | None = option(None, "makes unseeded requests repeatable", at_least=0, at_most=2**64 - 1)
    thinking_token_ids: tuple[int, ...] = option(
        (),
        "the two ids that open and close thinking; <think> and </think> of the tokenizer when not set",
        at_least=0,
        contract="Capabilities.max_thinking_tokens",
    )
    guided_backend: GuidedBackend = option(
        "auto",
        "grammar library of requests that name none; auto takes xgrammar, else llguidance",
        contract="GuidedDecoding.backend",
    )
    guided_disable_any_whitespace: bool = option(
        False,
        "JSON of a grammar has a blank at most between its tokens, unless a request says otherwise",
        contract="GuidedDecoding.whitespace_pattern",
    )
    speculative_config: str = option(
        "", 'drafts tokens: {"method": "ngram", "num_speculative_tokens": 5} (JSON; --engine torch)'
    )
    pooling: Pooling = option(
        "auto", "what an embedding is made of; auto as the model says, else last, or mean of an encoder"
    )
    normalize_embeddings: bool = option(True, "give embeddings the length 1")

    max_model_len: int | None = option(
        None,
        "longest prompt and output together; the model's own length when not set",
        unit="tokens",
        at_least=2,
        heading="batching and memory",
        contract="EngineConfig.context_length",
    )
    max_num_seqs: int = option(
        64,
        "most sequences that run at the same time",
        aliases=("--max-batch-size",),
        at_least=1,
        contract="EngineConfig.max_num_seqs",
    )
    max_num_batched_tokens: int | None = option(
        None,
        "most tokens computed in one step; chosen by device when not set",
        unit="tokens",
        at_least=1,
        contract="EngineConfig.max_num_batched_tokens",
    )
    block_size: int | None = option(
        None,
        "size of a KV block; when not set 16, and 256 in half precision on a GPU, whose kernel needs that",
        unit="tokens",
        at_least=1,
        contract="EngineConfig.kv_cache_block_size",
    )
    num_gpu_blocks_override: int | None = option(
        None,
        "number of KV blocks, on any device; from the memory when not set",
        aliases=("--num-kv-blocks",),
        at_least=1,
        contract="EngineConfig.total_kv_blocks",
    )
    kv_cache_memory_bytes: int | None = option(
        None, "memory for the KV cache; chosen by device when not set", unit="bytes", at_least=1
    )
    enable_prefix_caching: bool = option(
        True,
        "reuse the KV blocks of equal prompt beginnings (--engine torch)",
        contract="Capabilities.prefix_cache",
    )
    max_batch_prefill_tokens: int | None = option(
        None,
        "most prompt tokens computed in one step; as many as fit when not set (--engine torch)",
        unit="tokens",
        at_least=1,
    )
    max_mixed_prefill_tokens: int | None = option(
        None,
        "most prompt tokens computed in a step in which others decode and wait for it; "
        "half of --max-num-batched-tokens when not set (--engine torch)",
        unit="tokens",
        at_least=1,
    )
    max_batch_total_tokens: int | None = option(
        None,
        "most tokens that prompts and longest outputs of all running sequences may have (--engine torch)",
        unit="tokens",
        at_least=1,
    )
    waiting_served_ratio: float = option(
        0.0,
        "sequences that must wait, per running one, before any of them joins the batch (--engine torch)",
        at_least=0,
    )
    max_waiting_tokens: int = option(
        20, "steps after which waiting sequences join whatever the ratio (--engine torch)", at_least=0
    )

    adapter_folder: Path | None = option(
        None,
        "serve LoRA adapters, in the format of peft, from folders below this one",
        heading="adapters",
        contract="Capabilities.lora",
    )
    max_loras: int = option(
        8, "most adapters that are loaded at the same time", at_least=1, contract="Limits.max_loras"
    )
    max_lora_rank: int = option(64, "largest rank of an adapter (--engine torch)", at_least=1)

    uds: Path = option(
        computed(lambda: default_socket("engine"), shown_socket("engine")),
        "Unix socket to listen on, readable by its owner only",
        heading="address",
    )
    host: str = option(
        "127.0.0.1", f"listen on TCP at this host, at port {DEFAULT_PORT} unless --port is set"
    )
    port: int | None = option(
        None, "listen on TCP at this port; 0 picks a free one and prints it", at_least=0, at_most=65535
    )
    allow_insecure: bool = option(
        False, "allow a --host beyond loopback, where anyone can read prompts and send requests"
    )
    instance_id: str = option(
        "",
        "name of this server among others; drawn at start when not set",
        contract="GetEngineInfoResponse.instance_id",
    )
    worker_id: int | None = option(
        None,
        "number by which routing hints name this server; drawn at start when not set",
        at_least=0,
        at_most=2**64 - 1,
        contract="GetEngineInfoResponse.worker_id",
    )
    reflection: bool = option(False, "serve gRPC reflection, for grpcurl and the like")

    metrics_port: int | None = option(
        None,
        "export Prometheus metrics at this port of --host; 0 picks a free one and prints it",
        at_least=0,
        at_most=65535,
        heading="metrics",
        contract="Capabilities.metrics",
    )
    metrics_prefix: str = option("vllm:", "begin of the names that vLLM has too")

    kv_transfer_folder: Path = option(
        computed(default_kv_folder, SHOWN_KV_FOLDER),
        "private folder on this host where prefill and decode engines hand KV over",
        heading="--role prefill and decode",
    )
    kv_transfer_ttl: float = option(
        60.0,
        "how long a hand-off waits for its decode engine",
        unit="s",
        at_least=0.1,
        contract="PrefillHandoff.ttl_seconds",
    )
    kv_transfer_max_bytes: int = option(
        2**30,
        "most KV that waits: for a decode engine on the side that writes, for its turn on the other",
        unit="bytes",
        at_least=1,
    )

    max_num_queued_reqs: int = option(
        1024,
        "most requests that wait; further ones are refused as retryable",
        at_least=1,
        heading="limits",
        contract="Limits.max_num_queued_reqs",
    )
    max_num_queued_tokens: int = option(
        1_048_576,
        "most prompt tokens that wait; further requests are refused as retryable",
        unit="tokens",
        at_least=1,
        contract="Limits.max_num_queued_tokens",
    )
    max_message_bytes: int = option(
        8 * 2**20,
        "largest message in both directions",
        unit="bytes",
        at_least=4096,
        at_most=MAX_INT32,
        contract="Limits.max_request_bytes",
    )
    max_concurrent_streams: int = option(1024, "most open RPCs per connection", at_least=1, at_most=MAX_INT32)
    stream_buffer_tokens: int = option(
        16_384,
        "tokens kept per request for a slow reader before the request is aborted",
        unit="tokens",
        at_least=1,
        at_most=2**32 - 1,
        contract="Limits.max_stream_buffer_tokens",
    )
    slow_consumer_timeout: float = option(
        30.0, "how long a reader may take nothing before its request is aborted", unit="s", at_least=0.1
    )

    shutdown_timeout: float = option(
        30.0,
        "how long running requests may go on after SIGTERM; 0 aborts them at once",
        unit="s",
        at_least=0,
        heading="life",
    )
    admission_grace: float = option(
        0.0,
        "how long a drain still accepts late requests while health says NOT_SERVING",
        unit="s",
        at_least=0,
    )
    watchdog_timeout: float = option(
        60.0,
        "how far a step may run beyond its expected time before the process ends; 0 is never",
        unit="s",
        at_least=0,
    )
    check_engine: bool | None = option(
        None,
        "check all that the engine sends; a mistake ends its request, and the log explains it; "
        "when not set on for an engine of your own, off for torch and mocker",
    )
    log_level: LogLevel = option("info", "least severe log line to print", heading="logs")
    log_format: LogFormat = option("auto", "style of log lines; auto is pretty on a terminal, else json")
    log_requests: bool = option(False, "log a line per request: ids, counts and times, never prompts")

    upstream: str = option(
        "", "bare engine to be the server of: unix:/path or host:port", heading="--engine upstream"
    )
    upstream_start_timeout: float = option(600.0, "how long it may take to answer", unit="s", at_least=0)
    upstream_silence_timeout: float = option(
        120.0, "how long a running request may wait for a token until it fails", unit="s", at_least=0.1
    )

    engine_args: str = option(
        "", "more for vLLM's own command line: --engine-args='--flag value'", heading="--engine vllm"
    )

    mocker_ttft_ms: float = option(
        0.0, "time to the first token", unit="ms", at_least=0, heading="--engine mocker"
    )
    mocker_itl_ms: float = option(0.0, "time between tokens", unit="ms", at_least=0)
    mocker_script: Path | None = option(
        None, 'JSON file with answers: [{"prompt": text or ids, "answer": text or ids}, …]'
    )
    mocker_fault: str = option("", "fail on purpose: step:N, stall:N or forward:REQUEST_ID")

    def __post_init__(self) -> None:
        for is_wrong, message in RULES.items():
            if is_wrong(self):
                raise OptionError(message)


def load_options(argv: Sequence[str] | None = None) -> ServerOptions:
    """The options of this process; exits with 2 and a message when they are wrong."""
    description = "Serve a model on the engine contract, enginewire.v1."
    found = load(ServerOptions, argv, prog="enginewire-server", description=description, resolve=complete)
    return found.options


def complete(loaded: Loaded[ServerOptions]) -> ServerOptions:
    """A host alone means TCP at the default port, `upstream` alone its engine. Raises OptionError.

    There is one address, and one engine.
    """
    options = loaded.options
    if options.upstream and "engine" not in loaded.sources:
        options = replace(options, engine=OurEngine.UPSTREAM.value)
    if options.upstream and options.engine != OurEngine.UPSTREAM:
        raise OptionError(f"--upstream and --engine {options.engine} exclude each other: there is one engine")
    if wants_tcp(loaded.sources) and options.port is None:
        return replace(options, port=DEFAULT_PORT)
    return options

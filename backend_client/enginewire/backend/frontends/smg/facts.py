"""What SMG asks before it sends requests: the model, the server, the load, the tokenizer.

Sans-IO: from the messages of our contract to those of SMG. Knows nothing about requests.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Final

from smg_grpc_proto.generated import common_pb2 as common, vllm_engine_pb2 as vllm

from enginewire import v1 as pb
from enginewire.version import __version__

# Far below the 4 MiB that SMG's gRPC library takes in one message.
CHUNK_BYTES: Final = 1 << 20
# What SMG calls a server that speaks this protocol.
# SMG looks for a tokenizer in a folder, then on a public hub, and asks the worker last. A path that cannot be
# there makes it ask at once, and for the engine's own.
NO_FOLDER: Final = "/nonexistent/tokenizer-of-the-engine"
SERVER_TYPE: Final = "vllm-grpc"


def model_info(config: pb.EngineConfig) -> vllm.GetModelInfoResponse:
    """The model, without a path: SMG shall ask for the tokenizer and never look for a folder."""
    name = config.served_model_name or config.model
    return vllm.GetModelInfoResponse(
        model_path=name,
        served_model_name=name,
        tokenizer_path=NO_FOLDER,
        is_generation=True,
        max_context_length=config.context_length,
        max_req_input_len=min(config.limits.max_prompt_tokens or config.context_length, 2**31 - 1),
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids,
        default_sampling_params_json=json.dumps(sampling_defaults(config.capabilities.default_sampling)),
    )


def sampling_defaults(defaults: pb.SamplingDefaults) -> dict[str, float]:
    """What holds for a request that does not say, under vLLM's names; only what differs from nothing."""
    return {
        field.name: round(value, 6) if isinstance(value, float) else value
        for field, value in defaults.ListFields()
    }


def server_info(config: pb.EngineConfig, load: pb.Load, uptime: float) -> vllm.GetServerInfoResponse:
    """The server; `uptime` in seconds."""
    return vllm.GetServerInfoResponse(
        active_requests=load.running + load.waiting,
        uptime_seconds=uptime,
        server_type=SERVER_TYPE,
        data_parallel_size=max(1, config.data_parallel_size),
        block_size=config.kv_cache_block_size,
        max_num_seqs=min(config.max_num_seqs, 2**31 - 1),
    )


def loads(config: pb.EngineConfig, load: pb.Load, timestamp: str) -> vllm.GetLoadsResponse:
    """The load, one row per data-parallel rank. `timestamp` in ISO 8601."""
    ranks = list(load.ranks) or [
        pb.RankLoad(
            running=load.running,
            waiting=load.waiting,
            kv_blocks_used=load.kv_blocks_used,
            kv_blocks_total=load.kv_blocks_total,
        )
    ]
    rows = [rank_load(config, rank) for rank in ranks]
    rows[0].num_waiting_uncached_tokens = min(load.waiting_tokens, 2**31 - 1)
    return vllm.GetLoadsResponse(
        timestamp=timestamp, version=__version__, dp_rank_count=len(rows), loads=rows
    )


def rank_load(config: pb.EngineConfig, rank: pb.RankLoad) -> vllm.SchedulerLoad:
    """The load of one rank."""
    size = config.kv_cache_block_size
    return vllm.SchedulerLoad(
        dp_rank=rank.dp_rank,
        num_running_reqs=rank.running,
        num_waiting_reqs=rank.waiting,
        num_total_reqs=rank.running + rank.waiting,
        num_used_tokens=min(rank.kv_blocks_used * size, 2**31 - 1),
        max_total_num_tokens=min(rank.kv_blocks_total * size, 2**31 - 1),
        token_usage=rank.kv_blocks_used / rank.kv_blocks_total if rank.kv_blocks_total else 0.0,
        max_running_requests=min(config.max_num_seqs, 2**31 - 1),
    )


def tokenizer_chunks(files: Mapping[str, bytes]) -> Iterator[common.GetTokenizerChunk]:
    """The files of a tokenizer as a zip archive in pieces, its digest with the last."""
    archive = zipped(files)
    digest = hashlib.sha256(archive).hexdigest()
    for begin in range(0, len(archive), CHUNK_BYTES):
        is_last = begin + CHUNK_BYTES >= len(archive)
        data = archive[begin : begin + CHUNK_BYTES]
        yield common.GetTokenizerChunk(data=data, sha256=digest if is_last else "")


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip archive; equal files make equal archives."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()

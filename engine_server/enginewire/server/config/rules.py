"""Which options of the engine server make no sense, alone or together, and what to tell whoever gave them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from enginewire.addresses import is_loopback, is_on_this_machine
from enginewire.server.config.our_engines import NAMES, OurEngine

if TYPE_CHECKING:
    from enginewire.server.config.options import ServerOptions


def _is_no_engine(options: ServerOptions) -> bool:
    module, colon, attribute = options.engine.partition(":")
    return options.engine not in {*OurEngine} and not (module and colon and attribute)


def _batches_are_too_small(options: ServerOptions) -> bool:
    return (
        options.max_num_batched_tokens is not None and options.max_num_batched_tokens < options.max_num_seqs
    )


def _sizes_cache_twice(options: ServerOptions) -> bool:
    return options.num_gpu_blocks_override is not None and options.kv_cache_memory_bytes is not None


def _prefix_begins_no_name(options: ServerOptions) -> bool:
    return not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", options.metrics_prefix)


def _mocks_nothing(options: ServerOptions) -> bool:
    mocks = (options.mocker_ttft_ms, options.mocker_itl_ms, options.mocker_script, options.mocker_fault)
    return options.engine != OurEngine.MOCKER and any(mocks)


def _args_are_for_nobody(options: ServerOptions) -> bool:
    return options.engine != OurEngine.VLLM and bool(options.engine_args)


def _args_cannot_be_split(options: ServerOptions) -> bool:
    try:
        shlex.split(options.engine_args)
    except ValueError:
        return True
    return False


def is_url(target: str) -> bool:
    """True for what may be the URL of a completions server, and is no gRPC name of a bare engine."""
    return target.startswith(("http://", "https://"))


def _has_no_upstream(options: ServerOptions) -> bool:
    return options.engine == OurEngine.UPSTREAM and not options.upstream


def _has_no_url(options: ServerOptions) -> bool:
    return options.engine == OurEngine.OPENAI and not _is_whole(options.upstream)


def _upstream_is_no_address(options: ServerOptions) -> bool:
    if options.engine == OurEngine.OPENAI or not options.upstream:
        return False
    address = r"unix:.*[^/]|unix-abstract:.+|.+:[0-9]{1,5}"
    is_for_others = is_url(options.upstream) and options.engine == OurEngine.UPSTREAM
    return is_for_others or not (_is_whole(options.upstream) or re.fullmatch(address, options.upstream))


def _upstream_is_open_to_others(options: ServerOptions) -> bool:
    if not options.upstream or options.allow_insecure:
        return False
    if is_url(options.upstream):
        url = urlsplit(options.upstream)
        return url.scheme == "http" and not is_loopback(url.hostname or "")
    return not is_on_this_machine(options.upstream)


def _is_whole(url: str) -> bool:
    """True for a URL of a host, without a password in it, a query or a fragment."""
    try:
        found = urlsplit(url)
        return is_url(url) and bool(found.hostname) and "@" not in found.netloc and not url.endswith(":")
    except ValueError:
        return False


def _has_two_keys(options: ServerOptions) -> bool:
    return bool(options.upstream_api_key) and options.upstream_api_key_file is not None


def _key_is_for_nobody(options: ServerOptions) -> bool:
    keys = options.upstream_api_key or options.upstream_api_key_file
    return not is_url(options.upstream) and bool(keys)


def _openai_has_a_part(options: ServerOptions) -> bool:
    return options.engine == OurEngine.OPENAI and options.role != "aggregated"


RULES: Final[Mapping[Callable[[ServerOptions], bool], str]] = {
    _is_no_engine: f"--engine: must be {NAMES} or module:Class",
    _batches_are_too_small: "--max-num-batched-tokens must not be below --max-num-seqs",
    _sizes_cache_twice: "--num-gpu-blocks-override and --kv-cache-memory-bytes exclude each other",
    _prefix_begins_no_name: "--metrics-prefix: must be letters, digits, _ and :, and begin with no digit",
    _has_no_upstream: "--engine upstream: needs --upstream, where that engine listens",
    _has_no_url: "--engine openai: needs --upstream, the server's URL, such as http://127.0.0.1:8080",
    _upstream_is_no_address: "--upstream: must be unix:/path or host:port of a bare engine, or an http URL"
    " without a name or password in it of a completions server",
    _upstream_is_open_to_others: "--upstream: on the way to a host beyond loopback others could read prompts;"
    " use unix:/path, 127.0.0.1 or https, or say --allow-insecure",
    _has_two_keys: "--upstream-api-key and --upstream-api-key-file exclude each other",
    _key_is_for_nobody: "--upstream-api-key: needs --upstream with a URL; a bare engine takes no key",
    _openai_has_a_part: "--role: a completions server computes prompt and answer; it can only be aggregated",
    _args_are_for_nobody: "--engine-args needs --engine vllm",
    _args_cannot_be_split: "--engine-args: must be words as in a shell, quotes closed",
    _mocks_nothing: "--mocker-… options need --engine mocker",
}

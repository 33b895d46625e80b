"""Which engine `--engine` names. Imports an engine only when it was chosen.

Some are ours (`OURS`); `module:Class` is any class of yours that is an `LLMEngine` or a
`StepEngine` and whose constructor takes the `ServerOptions`.
"""

from __future__ import annotations

import importlib
import logging
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from enginewire.access.known_callers import InvalidKeys
from enginewire.server.config.options import ServerOptions
from enginewire.server.config.our_engines import OurEngine
from enginewire.server.engines.interface import AdapterEngine, LLMEngine, StepEngine
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.engines.model_options import ModelOptions
from enginewire.server.engines.shape import engine_classes, fault_of, fault_of_class
from enginewire.server.handoff.options import TransferOptions

OF_TORCH_ENGINE: Final = ("numpy", "safetensors", "tokenizers", "torch", "transformers")
"""What the extra `engine` installs."""

log = logging.getLogger(__name__)


class EngineUnavailable(Exception):
    """The options name no engine that can be served; the message says why."""


def make_engine(options: ServerOptions) -> StepEngine:
    """Construct the engine that the options name. Nothing is loaded yet."""
    try:
        engine = _checked(options, OURS.get(options.engine, _custom)(options))
    except ModuleNotFoundError as error:
        extras: Mapping[str, str] = {
            OurEngine.TORCH: "engine",
            OurEngine.MOCKER: "server",
            OurEngine.UPSTREAM: "server",
            OurEngine.VLLM: "vllm",
            OurEngine.OPENAI: "openai",
        }
        extra = extras.get(options.engine)
        hint = f": pip install 'enginewire[{extra}]'" if extra else ""
        raise EngineUnavailable(f"--engine {options.engine}: no module named {error.name}{hint}") from error
    except (OSError, ValueError) as error:
        raise EngineUnavailable(f"--engine {options.engine}: {error}") from error
    except InvalidKeys as error:
        raise EngineUnavailable(str(error)) from error
    return engine


def _checked(options: ServerOptions, engine: object) -> StepEngine:
    """The engine as one that steps, if it can do what the options ask of it."""
    if (fault := fault_of(engine)) is not None:
        raise EngineUnavailable(f"--engine {options.engine}: {fault}")
    if isinstance(engine, LLMEngine) and not isinstance(engine, StepEngine):
        engine = IteratorDriver(engine)
    assert isinstance(engine, StepEngine), "that is what fault_of looks for"
    if options.adapter_folder is not None:
        if not isinstance(engine, AdapterEngine):
            raise EngineUnavailable(f"--adapter-folder: --engine {options.engine} serves no adapters")
        if not options.adapter_folder.is_dir():
            raise EngineUnavailable(f"--adapter-folder {options.adapter_folder}: no such folder")
    return engine


def _torch(options: ServerOptions) -> StepEngine:
    _need(OF_TORCH_ENGINE)
    from enginewire.torch_engine.engine import TorchEngine
    from enginewire.torch_engine.options import SpeculativeConfig, TorchEngineOptions

    given = options.speculative_config
    return TorchEngine(
        TorchEngineOptions(
            **_of_model(options),
            device=options.device,
            quantization=options.quantization,
            compile_kernels=options.compile_kernels,
            batch_invariant=options.batch_invariant,
            async_scheduling=options.async_scheduling,
            enforce_eager=options.enforce_eager,
            max_batch_prefill_tokens=options.max_batch_prefill_tokens,
            max_mixed_prefill_tokens=options.max_mixed_prefill_tokens,
            max_batch_total_tokens=options.max_batch_total_tokens,
            waiting_served_ratio=options.waiting_served_ratio,
            max_waiting_tokens=options.max_waiting_tokens,
            pooling=options.pooling,
            normalize_embeddings=options.normalize_embeddings,
            role=options.role,
            transfer=_transfer(options),
            thinking_token_ids=options.thinking_token_ids,
            guided_backend=options.guided_backend,
            guided_disable_any_whitespace=options.guided_disable_any_whitespace,
            speculative_config=SpeculativeConfig.from_json(given) if given else None,
        ),
        progress=_log_progress,
    )


def _of_model(options: ServerOptions) -> dict[str, Any]:
    """What every engine is told that loads a model: the fields of `ModelOptions`."""
    chosen = {each.name: getattr(options, each.name, None) for each in fields(ModelOptions)}
    return chosen | {
        "num_kv_blocks": options.num_gpu_blocks_override,
        "max_loras": options.max_loras if options.adapter_folder else 0,
    }


def _mocker(options: ServerOptions) -> StepEngine:
    from enginewire.server.engines.mocker.engine import MockerEngine
    from enginewire.server.engines.mocker.options import MockerOptions, script_from_json

    given: dict[str, Any] = {
        "block_size": options.block_size,
        "context_length": options.max_model_len,
        "num_kv_blocks": options.num_gpu_blocks_override,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "script": script_from_json(options.mocker_script.read_text()) if options.mocker_script else None,
    }
    # All at once: what is checked with each other must not be checked beside a default.
    chosen = MockerOptions(
        max_num_seqs=options.max_num_seqs,
        ttft_ms=options.mocker_ttft_ms,
        itl_ms=options.mocker_itl_ms,
        seed=options.seed,
        fault=options.mocker_fault,
        role=options.role,
        transfer=_transfer(options),
        **{name: value for name, value in given.items() if value is not None},
    )
    return MockerEngine(chosen)


def _upstream(options: ServerOptions) -> StepEngine:
    from enginewire.server.engines.remote.options import RemoteOptions
    from enginewire.server.engines.upstream.engine import UpstreamEngine

    return UpstreamEngine(
        RemoteOptions(
            target=options.upstream,
            start_timeout=options.upstream_start_timeout,
            silence_timeout=options.upstream_silence_timeout,
            max_num_seqs=options.max_num_seqs,
        )
    )


def _vllm(options: ServerOptions) -> StepEngine:
    _need(("vllm",))
    if options.role != "aggregated":
        raise ValueError(f"--role {options.role}: vLLM does everything or nothing here")
    from enginewire.vllm_engine.engine import VllmEngine
    from enginewire.vllm_engine.options import VllmEngineOptions

    arguments = tuple(shlex.split(options.engine_args))
    return VllmEngine(VllmEngineOptions(**_of_model(options), arguments=arguments))


def _openai(options: ServerOptions) -> StepEngine:
    _need(("httpx2",))
    from enginewire.access.target_key import TargetKey
    from enginewire.openai_engine.engine import OpenAIEngine
    from enginewire.openai_engine.options import OpenAIEngineOptions

    has_key = options.upstream_api_key or options.upstream_api_key_file
    key = (options.upstream_api_key, options.upstream_api_key_file, "--upstream-api-key")
    return OpenAIEngine(
        OpenAIEngineOptions(
            target=options.upstream,
            start_timeout=options.upstream_start_timeout,
            silence_timeout=options.upstream_silence_timeout,
            max_num_seqs=options.max_num_seqs,
            server=options.openai_server,
            folder=options.model,
            api_key=TargetKey(*key, of_others=True) if has_key else None,
        )
    )


def _need(modules: Iterable[str]) -> None:
    """Raise for a module that would only be missed when the engine starts."""
    for module in modules:
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"no module named {module}", name=module)


def _transfer(options: ServerOptions) -> TransferOptions | None:
    if options.role == "aggregated":
        return None
    return TransferOptions(options.kv_transfer_folder, options.kv_transfer_ttl, options.kv_transfer_max_bytes)


def _log_progress(phase: str, done: float) -> None:
    log.info("%s %d %%", phase, round(done * 100))


def _custom(options: ServerOptions) -> object:
    module_name, _, attribute = options.engine.partition(":")
    factory = _class_in(_module(options.engine, module_name), options.engine, attribute)
    if (fault := fault_of_class(factory)) is not None:
        raise EngineUnavailable(f"--engine {options.engine}: {fault}")
    return factory(options)


def _module(given: str, name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise EngineUnavailable(f"--engine {given}: {_no_module(name)}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{name}.".startswith(f"{missing}."):
            raise EngineUnavailable(
                f"--engine {given}: {name} needs {missing}, which is not installed"
            ) from error
        raise EngineUnavailable(f"--engine {given}: {_no_module(name)}") from error


def _no_module(name: str) -> str:
    """That Python finds no such module, and where it may be."""
    plain = name.removesuffix(".py").strip("./").replace("/", ".")
    if plain != name:
        return f"{name} is a file; write the name of its module, {plain}"
    path = Path(*name.split("."))
    if path.is_dir() or path.with_suffix(".py").is_file():
        return f"no module named {name}: it is in this folder, where Python does not look; set PYTHONPATH=."
    return f"no module named {name}: install it, or set PYTHONPATH to its folder"


def _class_in(module: ModuleType, given: str, name: str) -> Any:
    if not hasattr(module, name):
        there = ", ".join(engine_classes(module)) or "no engine"
        raise EngineUnavailable(f"--engine {given}: {module.__name__} has no {name}; it has {there}")
    return getattr(module, name)


OURS: Final[Mapping[str, Callable[[ServerOptions], object]]] = {
    OurEngine.TORCH: _torch,
    OurEngine.MOCKER: _mocker,
    OurEngine.UPSTREAM: _upstream,
    OurEngine.VLLM: _vllm,
    OurEngine.OPENAI: _openai,
}

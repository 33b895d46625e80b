"""An engine that says of itself what no server may advertise does not start, and hears which field it is."""

from __future__ import annotations

import pytest

from enginewire import v1 as pb
from enginewire.server.engines.config_check import MAY_BE_ZERO, InvalidEngineConfig, check_config
from enginewire.server.engines.interface import Tokenizer
from enginewire.server.engines.mocker.engine import MockerEngine
from tests.server.engines.test_shape import Good

DEFAULT = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}


def config(**fields: object) -> pb.EngineConfig:
    good = {"model": "m", "vocab_size": 10, "role": pb.ENGINE_ROLE_AGGREGATED}
    return pb.EngineConfig(**{**good, **fields})


def capabilities(**fields: object) -> pb.EngineConfig:
    return config(capabilities=pb.Capabilities(**fields))


def sampling(**fields: float) -> pb.EngineConfig:
    return capabilities(default_sampling=pb.SamplingDefaults(**{**DEFAULT, **fields}))


FAULTS = [
    ("start must return", None),
    ("model: ", config(model="")),
    ("vocab_size: ", config(vocab_size=0)),
    ("role: ", config(role=pb.ENGINE_ROLE_UNSPECIFIED)),
    ("aliases: ", config(aliases=["a", ""])),
    ("aliases: ", config(aliases=["m"])),
    ("context_length: ", config(context_length=1)),
    ("eos_token_ids: ", config(eos_token_ids=[3, 10])),
    ("total_kv_blocks: ", config(total_kv_blocks=5)),
    ("total_kv_blocks: ", config(kv_cache_block_size=5)),
    ("total_kv_blocks: ", config(kv_cache_block_size=5, total_kv_blocks=5)),
    ("bootstrap_host: ", config(bootstrap_host="0.0.0.0", bootstrap_port=1)),
    ("bootstrap_host: ", config(bootstrap_host="[::]", bootstrap_port=1)),
    ("bootstrap_port: ", config(bootstrap_host="h", bootstrap_port=70_000)),
    ("capabilities.guided_modes: ", capabilities(guided_modes=[pb.GUIDED_MODE_UNSPECIFIED])),
    ("capabilities.tokenizer: ", capabilities(tokenizer=True)),
    ("capabilities.kv_events: ", capabilities(kv_events=True)),
    ("capabilities.embeddings: ", capabilities(embeddings=True)),
    ("capabilities.default_sampling.top_p: ", sampling(top_p=0.0)),
    ("capabilities.default_sampling.temperature: ", sampling(temperature=float("nan"))),
    *(
        (f"{field.name}: ", config(**{field.name: 0}))
        for field in pb.EngineConfig.DESCRIPTOR.fields
        if field.has_presence and not field.message_type and field.name not in MAY_BE_ZERO
        if field.name != "bootstrap_host"
    ),
    *(
        (f"limits.{field.name}: ", config(limits=pb.Limits(**{field.name: 0})))
        for field in pb.Limits.DESCRIPTOR.fields
        if field.name not in MAY_BE_ZERO
    ),
]


@pytest.mark.parametrize(("sentence", "wrong"), FAULTS)
def test_a_wrong_config_is_refused_with_its_field(sentence, wrong):
    with pytest.raises(InvalidEngineConfig, match=sentence.replace(".", r"\.")):
        check_config(wrong, Good())


def test_a_load_that_is_none_is_named_by_its_type(monkeypatch):
    engine = Good()
    monkeypatch.setattr(engine, "load", lambda: {"num_running_reqs": 0})
    with pytest.raises(InvalidEngineConfig, match="must return a Load, got dict"):
        check_config(config(), engine)


@pytest.mark.parametrize("files", ["/models/m", {"tokenizer.json": "{}"}, {1: b"{}"}], ids=repr)
def test_a_tokenizer_has_bytes_by_their_names(monkeypatch, files):
    engine = Good()
    monkeypatch.setattr(engine, "tokenizer", lambda: Tokenizer(files))
    with pytest.raises(InvalidEngineConfig, match=r"Tokenizer\.files must be a mapping from names"):
        check_config(capabilities(tokenizer=True), engine)
    monkeypatch.setattr(engine, "tokenizer", lambda: Tokenizer({"tokenizer.json": b"{}"}))
    check_config(capabilities(tokenizer=True), engine)


async def test_good_ones_pass():
    check_config(config(), Good())
    check_config(sampling(), Good())
    check_config(sampling(top_k=-1), Good())
    check_config(config(context_length=2), Good())
    engine = MockerEngine()
    check_config(await engine.start(1), engine)


async def test_the_server_does_not_start_and_says_why(engine_server):
    class Nameless(MockerEngine):
        async def start(self, worker_id: int) -> pb.EngineConfig:
            config = await super().start(worker_id)
            config.model = ""
            return config

    serving = await engine_server(Nameless(), is_started=False)
    with pytest.raises(InvalidEngineConfig, match="model: must not be empty"):
        await serving.server.start()


async def test_a_plain_start_is_told_from_a_coroutine(engine_server):
    engine = MockerEngine()
    engine.start = lambda worker_id: config()
    serving = await engine_server(engine, is_started=False)
    with pytest.raises(Exception, match="start must be an `async def`: it returned EngineConfig"):
        await serving.server.start()


def test_the_base_class_begins_empty_and_is_told_so():
    with pytest.raises(InvalidEngineConfig, match="model"):
        check_config(Good().config, Good())

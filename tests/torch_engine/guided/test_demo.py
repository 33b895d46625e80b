"""The model that ships with the project answers in JSON when a schema asks for it."""

from __future__ import annotations

import json

from tokenizers import Tokenizer

from enginewire import v1 as pb
from enginewire.server.demo_model import PATH
from enginewire.server.engines.interface import GenerateContext
from enginewire.torch_engine.engine import TorchEngine
from enginewire.torch_engine.options import TorchEngineOptions

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "word": {"enum": ["straße", "日本", "é😀"]}},
    "required": ["ok", "word"],
}


async def test_the_demo_model_follows_a_schema_with_characters_of_several_tokens():
    tokenizer = Tokenizer.from_file(str(PATH / "tokenizer.json"))
    engine = TorchEngine(TorchEngineOptions("builtin:demo", device="cpu", dtype="float32", num_threads=1))
    await engine.start(1)
    for seed in range(6):
        sampling = pb.SamplingOptions(temperature=1.0, seed=seed)
        sampling.guided_decoding.json_schema = json.dumps(SCHEMA)
        request = pb.PreprocessedRequest(
            token_ids=tokenizer.encode("Hello").ids,
            sampling_options=sampling,
            stop_conditions=pb.StopConditions(max_tokens=40),
        )
        outputs = [output async for output in engine.generate(request, GenerateContext("r"))]
        answer = json.loads(tokenizer.decode([token for output in outputs for token in output.token_ids]))
        assert set(answer) == {"ok", "word"}
        assert answer["word"] in SCHEMA["properties"]["word"]["enum"]
        assert outputs[-1].finish_reason == pb.FINISH_REASON_EOS
    await engine.cleanup()

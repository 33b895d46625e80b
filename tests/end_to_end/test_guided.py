"""Grammars through everything: a backend's caller gets JSON, or hears at once that its schema is none."""

from __future__ import annotations

import json

from enginewire import v1 as pb
from enginewire.backend.backend import Backend
from enginewire.backend.engines.connection.client import EngineClient
from enginewire.backend.prompting.tokenizer import BackendTokenizer


def guided(schema: str) -> pb.PreprocessedRequest:
    sampling = pb.SamplingOptions(temperature=0, guided_decoding=pb.GuidedDecoding(json_schema=schema))
    stop = pb.StopConditions(max_tokens=100)
    return pb.PreprocessedRequest(token_ids=[6, 7, 8], sampling_options=sampling, stop_conditions=stop)


async def test_json_comes_out_of_a_backend_and_a_schema_that_is_none_is_refused(demo_target: str) -> None:
    async with EngineClient(demo_target) as client:
        await client.wait_ready(60)
        tokenizer = BackendTokenizer.from_files(await client.tokenizer_files())
        backend = Backend(client, tokenizer.vocabulary)
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        items = [item async for item in backend.generate(guided(json.dumps(schema)))]
        assert not any(item.error for item in items)
        answer = json.loads("".join(item.data.text for item in items if item.data))
        assert isinstance(answer["ok"], bool)
        refused = [item async for item in backend.generate(guided('{"type": "nothing"}'))]
        assert [item.error.field for item in refused] == ["sampling_options.guided_decoding.json_schema"]

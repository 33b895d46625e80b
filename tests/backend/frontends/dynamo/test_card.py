from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.dynamo.card import check_role, model_name, write_card


def test_a_folder_has_the_files_of_the_tokenizer_and_the_facts(tmp_path: Path) -> None:
    config = pb.EngineConfig(model="m", vocab_size=9, eos_token_ids=[2, 3], context_length=64)
    write_card(tmp_path, config, {"tokenizer.json": b"{}", "chat_template.jinja": b"x"})
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "tokenizer.json",
        "chat_template.jinja",
    }
    said = json.loads((tmp_path / "config.json").read_text())
    assert (said["eos_token_id"], said["vocab_size"], said["max_position_embeddings"]) == ([2, 3], 9, 64)


def test_the_name_for_callers_comes_first() -> None:
    assert model_name(pb.EngineConfig(model="m")) == "m"
    assert model_name(pb.EngineConfig(model="m", served_model_name="s")) == "s"


@pytest.mark.parametrize("role", [pb.ENGINE_ROLE_PREFILL, pb.ENGINE_ROLE_DECODE, pb.ENGINE_ROLE_ENCODE])
def test_half_an_engine_is_refused(role: pb.EngineRole.ValueType) -> None:
    check_role(pb.EngineConfig(role=pb.ENGINE_ROLE_AGGREGATED))
    with pytest.raises(RequestFailed, match="role"):
        check_role(pb.EngineConfig(role=role))

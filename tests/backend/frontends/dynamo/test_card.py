from __future__ import annotations

import json
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.backend.engines.failure import RequestFailed
from enginewire.backend.frontends.dynamo.card import check_role, model_name, write_card

CONFIG = pb.EngineConfig(model="m", vocab_size=9, eos_token_ids=[2, 3], context_length=64)
FILES = {"tokenizer.json": b"{}", "chat_template.jinja": b"x"}


def test_a_folder_has_the_files_of_the_tokenizer_and_the_facts(tmp_path: Path) -> None:
    folder = write_card(tmp_path / "cards", CONFIG, FILES)
    assert {path.name for path in folder.iterdir()} == {"config.json", *FILES}
    said = json.loads((folder / "config.json").read_text())
    assert (said["eos_token_id"], said["vocab_size"], said["max_position_embeddings"]) == ([2, 3], 9, 64)
    assert folder.stat().st_mode & 0o077 == 0


def test_equal_cards_have_equal_paths_and_others_have_others(tmp_path: Path) -> None:
    folder = write_card(tmp_path, CONFIG, FILES)
    assert write_card(tmp_path, CONFIG, dict(reversed(FILES.items()))) == folder
    assert write_card(tmp_path, CONFIG, {**FILES, "chat_template.jinja": b"y"}) != folder
    assert write_card(tmp_path, pb.EngineConfig(model="m", vocab_size=8), FILES) != folder


def test_the_name_for_callers_comes_first() -> None:
    assert model_name(pb.EngineConfig(model="m")) == "m"
    assert model_name(pb.EngineConfig(model="m", served_model_name="s")) == "s"


@pytest.mark.parametrize("role", [pb.ENGINE_ROLE_PREFILL, pb.ENGINE_ROLE_DECODE, pb.ENGINE_ROLE_ENCODE])
def test_half_an_engine_is_refused(role: pb.EngineRole.ValueType) -> None:
    check_role(pb.EngineConfig(role=pb.ENGINE_ROLE_AGGREGATED))
    with pytest.raises(RequestFailed, match="role"):
        check_role(pb.EngineConfig(role=role))

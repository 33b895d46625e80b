"""Which engine an option names, and what is said when it names none."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from enginewire import v1 as pb
from enginewire.server import load_engine
from enginewire.server.config.options import ServerOptions
from enginewire.server.config.our_engines import OurEngine
from enginewire.server.engines.iterator_driver import IteratorDriver
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.model_options import ModelOptions
from enginewire.server.load_engine import OURS, EngineUnavailable, make_engine
from enginewire.vllm_engine.engine import VllmEngine
from tests.server.engines.test_iterator_driver import ScriptedEngine, counting

HERE = __name__


class Streams(ScriptedEngine):
    def __init__(self, options: ServerOptions) -> None:
        super().__init__(counting)
        self.options = options


class Steps(MockerEngine):
    def __init__(self, options: ServerOptions) -> None:
        super().__init__()


class Neither:
    def __init__(self, options: ServerOptions) -> None:
        pass


def refuses(options: ServerOptions) -> None:
    raise ValueError("a weight is missing")


def named(engine: str, **given: object) -> ServerOptions:
    return ServerOptions(engine=engine, **given)


def test_an_engine_that_steps_is_used_as_it_is():
    assert isinstance(make_engine(named(f"{HERE}:Steps")), Steps)


def test_an_engine_that_streams_is_driven():
    assert isinstance(make_engine(named(f"{HERE}:Streams")), IteratorDriver)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (f"{HERE}:Neither", "no method start, generate, abort"),
        (f"{HERE}:Nothing", "has no Nothing"),
        (f"{HERE}:refuses", "a weight is missing"),
        ("no_such_module:Engine", "no module named no_such_module"),
    ],
)
def test_what_is_no_engine_is_refused_by_name(engine, message):
    with pytest.raises(EngineUnavailable, match=message) as caught:
        make_engine(named(engine))
    assert f"--engine {engine}: " in str(caught.value)


def test_adapters_need_an_engine_that_serves_them_and_a_folder(tmp_path: Path):
    with pytest.raises(EngineUnavailable, match=f"--engine {HERE}:Streams serves no adapters"):
        make_engine(named(f"{HERE}:Streams", adapter_folder=tmp_path))
    with pytest.raises(EngineUnavailable, match="no such folder"):
        make_engine(named("mocker", adapter_folder=tmp_path / "none"))
    assert isinstance(make_engine(named("mocker", adapter_folder=tmp_path)), MockerEngine)


def test_where_a_module_is_is_said_as_well_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needy.py").write_text("import nothing_of_the_kind\n")
    monkeypatch.chdir(tmp_path)
    for engine, message in {
        "needy.py:Engine": "needy.py is a file; write the name of its module, needy",
        "needy:Engine": "it is in this folder, where Python does not look; set PYTHONPATH=.",
    }.items():
        with pytest.raises(EngineUnavailable, match=message):
            make_engine(named(engine))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EngineUnavailable, match="needy needs nothing_of_the_kind, which is not installed"):
        make_engine(named("needy:Engine"))


def test_every_engine_of_ours_can_be_made():
    assert set(OURS) == set(OurEngine)


async def test_the_mocker_gets_its_sizes_from_the_options(tmp_path: Path):
    options = named(
        "mocker",
        max_model_len=100,
        block_size=4,
        num_gpu_blocks_override=50,
        max_num_seqs=3,
        max_num_batched_tokens=9,
    )
    config = await make_engine(options).start(1)
    assert (config.context_length, config.kv_cache_block_size, config.total_kv_blocks) == (100, 4, 50)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (3, 9)
    assert config.role == pb.ENGINE_ROLE_AGGREGATED


def test_the_sizes_of_the_mocker_are_checked_with_each_other(tmp_path: Path):
    # The default of one of them would be too small for the other.
    make_engine(named("mocker", max_num_seqs=20_000, max_num_batched_tokens=30_000))
    with pytest.raises(EngineUnavailable, match="must be above max_num_seqs"):
        make_engine(named("mocker", max_num_seqs=20_000, max_num_batched_tokens=20_000))


@pytest.mark.parametrize("script", ["{}", "not json", '[{"prompt": "a"}]'])
def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path, script: str):
    path = tmp_path / "script.json"
    path.write_text(script)
    with pytest.raises(EngineUnavailable, match="--engine mocker"):
        make_engine(named("mocker", mocker_script=path))


def test_a_script_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(EngineUnavailable, match="--engine mocker"):
        make_engine(named("mocker", mocker_script=tmp_path / "nothing.json"))


def test_the_mocker_needs_no_torch():
    program = (
        "import sys; from enginewire.server.config.options import ServerOptions;"
        "from enginewire.server.load_engine import make_engine;"
        "import enginewire.server.server; make_engine(ServerOptions(engine='mocker'));"
        "sys.exit(bool({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_an_engine_whose_library_is_missing_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_engine, "find_spec", lambda name: None)
    with pytest.raises(EngineUnavailable) as caught:
        make_engine(named("vllm"))
    assert str(caught.value) == "--engine vllm: no module named vllm: pip install 'enginewire[vllm]'"


@pytest.mark.parametrize(
    ("engine", "extra"), [("torch", "engine"), ("mocker", "server"), ("upstream", "server"), ("vllm", "vllm")]
)
def test_every_engine_of_ours_has_an_extra_that_brings_what_it_imports(
    engine: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(options: ServerOptions) -> None:
        raise ModuleNotFoundError("no module named lacked", name="lacked")

    monkeypatch.setattr(load_engine, "OURS", {engine: lacks})
    with pytest.raises(
        EngineUnavailable, match=rf"no module named lacked: pip install 'enginewire\[{extra}\]'"
    ):
        make_engine(named(engine, upstream="unix:/a" if engine == "upstream" else ""))


def test_an_engine_that_loads_a_model_gets_its_sizes_from_the_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_engine, "find_spec", lambda name: True)
    sizes = {"max_model_len": 100, "block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 9, "seed": 2}
    given = {"model": "m", "max_lora_rank": 8, **sizes}
    engine = make_engine(named("vllm", num_gpu_blocks_override=50, **given))
    assert isinstance(engine, VllmEngine)
    expected = asdict(ModelOptions(num_kv_blocks=50, **given))
    assert {name: getattr(engine.options, name) for name in expected} == expected


def test_vllm_has_no_part_in_disaggregated_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_engine, "find_spec", lambda name: True)
    with pytest.raises(EngineUnavailable, match="--engine vllm: --role prefill"):
        make_engine(named("vllm", role="prefill"))


def test_what_is_said_to_vllm_is_split_as_by_a_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(load_engine, "find_spec", lambda name: True)
    engine = make_engine(named("vllm", engine_args="--a 'b c' --d=e"))
    assert isinstance(engine, VllmEngine)
    assert engine.options.command_line(tmp_path)[-3:] == ["--a", "b c", "--d=e"]

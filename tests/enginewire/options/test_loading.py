from __future__ import annotations

import json
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from enginewire.options import Loaded, OptionError, load
from enginewire.options.declaration import options_of
from enginewire.options.loading import dump
from tests.enginewire.options.toy import Toy


def loaded(*argv: str, **environment: str) -> Loaded[Toy]:
    return load(Toy, argv, prog="toy", description="A toy.", environment=environment)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str, **environment: str) -> str:
    with pytest.raises(SystemExit) as caught:
        loaded(*argv, **environment)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_nothing_given_means_the_defaults() -> None:
    assert loaded() == Loaded(Toy(), {})
    assert loaded().options.socket == Path("/here")


def test_flags_aliases_switches_lists_and_positionals_are_understood() -> None:
    argv = ["--port", "0", "--memory", "1KiB", "--color", "blue", "--names", "a", "--names", "b,c"]
    options = loaded(*argv, "--no-warm-up", "big").options
    assert options == Toy(model="big", port=0, memory=1024, color="blue", names=("a", "b,c"))
    assert loaded("--model-path", "m").options.model == "m"
    assert loaded("--warm-up").options.warm_up


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    config = written(tmp_path, "toy.toml", "seqs = 1\nport = 1\npatience = 1\n")
    result = loaded("--config", config, "--seqs", "3", TOY_SEQS="2", TOY_PORT="2")
    assert (result.options.seqs, result.options.port, result.options.patience) == (3, 2, 1.0)
    assert (result.options.memory, "memory" in result.sources) == (4096, False)
    assert result.sources["seqs"] == "--seqs"
    assert result.sources["port"] == "TOY_PORT"
    assert result.sources["patience"] == f"{config}: patience"


@given(flag=st.booleans(), variable=st.booleans(), file=st.booleans())
def test_the_first_source_that_has_a_value_wins(flag: bool, variable: bool, file: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = written(Path(folder), "toy.json", json.dumps({"seqs": 1} if file else {}))
        argv = ["--config", config, *(["--seqs", "3"] if flag else [])]
        seqs = loaded(*argv, **({"TOY_SEQS": "2"} if variable else {})).options.seqs
    assert seqs == (3 if flag else 2 if variable else 1 if file else 64)


def test_the_prefix_of_variables_can_be_chosen() -> None:
    environment = {"TOY_SEQS": "2", "X_SEQS": "3"}
    given = load(Toy, [], prog="toy", description="", env_prefix="X_", environment=environment)
    assert (given.options.seqs, given.sources) == (3, {"seqs": "X_SEQS"})


def test_an_empty_variable_counts_as_unset() -> None:
    assert loaded(TOY_SEQS="") == Loaded(Toy(), {})


@pytest.mark.parametrize("name", ["toy.toml", "toy.json", "toy.yaml", "toy.yml"])
def test_config_files_of_every_format_say_the_same(tmp_path: Path, name: str) -> None:
    text = {
        ".toml": 'warm-up = true\nnames = ["a"]\n',
        ".json": '{"warm-up": true, "names": ["a"], "port": null}',
    }
    config = written(tmp_path, name, text.get(Path(name).suffix, "warm-up: true\nnames: [a]\nport:\n"))
    assert loaded("--config", config).options == Toy(warm_up=True, names=("a",))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "seq = 1", "unknown option 'seq'; did you mean seqs? allowed: model, port, seqs"),
        ("a.toml", "seqs = 0", "a.toml: seqs: must be a whole number, at least 1, got 0"),
        ("a.toml", "seqs = true", "a.toml: seqs: must be a whole number, at least 1, got True"),
        ("a.toml", "warm-up = true\nwarm_up = true", "warm_up is set twice"),
        ("a.toml", "seqs = ", "cannot be parsed"),
        ("a.json", "[1]", "must hold options by name at its top level"),
        ("a.json", "{", "cannot be parsed"),
        ("a.json", "[" * 100_000, "cannot be parsed"),
        ("a.json", '{"patience": NaN}', "patience: must be a number, at least 0, got nan"),
        ("a.yaml", "a: [", "cannot be parsed"),
        ("a.yaml", "1: 2", "unknown option 1"),
        ("a.ini", "", "must end in one of .toml, .json, .yaml, .yml"),
    ],
)
def test_a_wrong_config_file_ends_with_2_and_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, message: str
) -> None:
    assert message in refusal(capsys, "--config", written(tmp_path, name, text))


def test_a_config_file_that_cannot_be_read_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "none.toml: No such file or directory" in refusal(capsys, "--config", str(tmp_path / "none.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    assert "bytes.toml cannot be parsed" in refusal(capsys, "--config", str(tmp_path / "bytes.toml"))


def test_yaml_without_its_package_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    assert "pip install pyyaml" in refusal(capsys, "--config", written(tmp_path, "a.yaml", "seqs: 1"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seqs", "x"], "toy: --seqs: must be a whole number, at least 1, got 'x'\n"),
        (["--port", "65536"], "toy: --port: must be a whole number from 0 to 65535, got 65536\n"),
        (["--color", "green"], "toy: --color: must be one of red, blue, got 'green'\n"),
        (["--warm-up", "--color", "blue"], "toy: --color blue and --warm-up exclude each other\n"),
        (["tiny", "--model", "tiny"], "toy: --model: given twice, with and without the flag\n"),
        (["--seq", "1"], "unrecognized arguments: --seq"),
        (["tiny", "big"], "unrecognized arguments: big"),
    ],
)
def test_a_wrong_flag_ends_with_2_and_the_reason(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    assert message in refusal(capsys, *argv)


def test_a_wrong_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, TOY_WARM_UP="maybe").startswith("toy: TOY_WARM_UP: must be one of true, 1,")


def test_a_wrong_secret_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "hunter2" not in refusal(capsys, "--api-key", "hunter2\0")
    assert "hunter2" not in repr(Toy(api_key="hunter2"))


def test_resolve_settles_what_depends_on_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    def resolve(given: Loaded[Toy]) -> Toy:
        if "port" in given.sources:
            raise OptionError("no ports today")
        return replace(given.options, seqs=7)

    def resolved(*argv: str) -> Toy:
        return load(Toy, argv, prog="toy", description="", environment={}, resolve=resolve).options

    assert resolved().seqs == 7
    with pytest.raises(SystemExit):
        resolved("--port", "1")
    assert capsys.readouterr().err == "toy: no ports today\n"


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        loaded(*argv)
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_shows_sections_units_choices_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--help")
    assert text.startswith("usage: toy [options] [MODEL]\n")
    for part in (
        "\nlife:\n",
        "--patience S",
        "--color {red,blue}",
        "100% colour (default: red)",
        "(default: somewhere)",
    ):
        assert part in text


def test_version_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--version").startswith("toy 0.")


def test_dump_shows_values_with_sources_and_masks_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--seqs", "3", "--api-key", "hunter2", "--dump-config").splitlines()
    assert "seqs = 3  # --seqs" in lines
    assert "# patience = 1.5  # default" in lines
    assert "# port = unset  # default" in lines
    assert "# api_key = ***  # --api-key" in lines
    assert len(lines) == len(fields(Toy))


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.builds(
        Toy,
        model=TEXT,
        port=st.none() | st.integers(0, 65535),
        memory=st.integers(0, 2**63),
        patience=st.floats(0, allow_infinity=False),
        names=st.lists(TEXT).map(tuple),
        sizes=st.lists(st.integers()).map(tuple),
        warm_up=st.booleans(),
    )
)
def test_what_dump_prints_is_a_config_file_with_the_same_options(options: Toy) -> None:
    given_values = {each.name: "here" for each in fields(Toy)}
    with tempfile.TemporaryDirectory() as folder:
        config = written(Path(folder), "dump.toml", dump(options_of(Toy), Loaded(options, given_values)))
        assert loaded("--config", config).options == options


def test_what_is_no_option_can_be_kept_for_another_program() -> None:
    argv = ["--engine", "mocker", "--port", "0", "--memory=1KiB", "--other=1", "-x"]
    result = load(Toy, argv, prog="toy", description="A toy.", environment={}, keeps_rest=True)
    assert result.options == Toy(model="mocker", port=0, memory=1024)
    assert result.rest == ("--engine", "--other=1", "-x")

"""The rules that the contract publishes as options: what they name exists, and comments say the same."""

from __future__ import annotations

import re

import pytest
from google.protobuf.descriptor import FieldDescriptor

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES, UNBOUNDED, Rule, rules_of
from tests.repository import ROOT

REQUEST_PROTO = ROOT / "proto/enginewire/v1/request.proto"
OF_EMBED = rules_of(pb.PreprocessedEmbeddingRequest.DESCRIPTOR)
ALL = {rule.field.full_name: rule for rule in (*OF_EMBED.values(), *FIELD_RULES.values())}
LEAVES = [path for path, rule in FIELD_RULES.items() if rule.field.message_type is None]
INTERVAL = re.compile(r"[\[(]-?\d+, -?\d+\]")


def commented_fields() -> dict[str, str]:
    """Full name of each field of request.proto → its comment."""
    found: dict[str, str] = {}
    message = comment = ""
    for line in REQUEST_PROTO.read_text().splitlines():
        if begin := re.match(r"message (\w+)", line):
            message = begin[1]
        if field := re.match(r" +[\w ]*?(\w+) = \d+[ ;]", line):
            found[f"enginewire.v1.{message}.{field[1]}"] = comment
        comment = f"{comment} {line.strip(' /')}" if line.strip().startswith("//") else ""
    return found


COMMENTS = commented_fields()


def paths_of(kind: pb.FieldClass.ValueType) -> set[str]:
    return {path for path in LEAVES if FIELD_RULES[path].field_class == kind}


@pytest.mark.parametrize("path", LEAVES)
def test_every_field_has_a_class(path: str) -> None:
    assert FIELD_RULES[path].field_class != pb.FIELD_CLASS_UNSPECIFIED


def test_every_capability_and_limit_that_a_rule_names_exists() -> None:
    assert {rule.capability for rule in ALL.values()} <= {"", *pb.Capabilities.DESCRIPTOR.fields_by_name}
    assert {rule.limit for rule in ALL.values()} <= {"", *pb.Limits.DESCRIPTOR.fields_by_name}


def test_a_limit_stands_for_one_bound_wherever_it_is_named() -> None:
    bounds = {(rule.limit, rule.bound) for rule in ALL.values() if rule.limit}
    assert len(bounds) == len({limit for limit, _ in bounds})
    assert UNBOUNDED not in {bound for _, bound in bounds}


@pytest.mark.parametrize("name", [name for name, rule in ALL.items() if rule.has_range])
def test_a_range_is_the_one_in_the_comment(name: str) -> None:
    rule, comment = ALL[name], COMMENTS[name].replace("..", ", ")
    worded = f"at least {rule.min:g}" if rule.range.endswith("inf)") else rule.range.strip("[]")
    assert worded in comment


@pytest.mark.parametrize("name", [name for name in COMMENTS if INTERVAL.search(COMMENTS[name])])
def test_an_interval_in_a_comment_is_a_range(name: str) -> None:
    assert INTERVAL.findall(COMMENTS[name]) == [ALL[name].range]


@pytest.mark.parametrize("name", [name for name in COMMENTS if "Capabilities." in COMMENTS[name]])
def test_a_capability_that_a_comment_asks_for_is_that_of_the_rule(name: str) -> None:
    needed = re.findall(r"need\w* Capabilities\.(\w+)", COMMENTS[name], re.IGNORECASE)
    assert needed in ([], [ALL[name].capability])


def test_the_default_of_a_field_asks_for_nothing() -> None:
    for name, rule in ALL.items():
        if rule.neutral is not None and (default := re.search(r"[Dd]efault (\d+|false)", COMMENTS[name])):
            assert not rule.asks(float(default[1].replace("false", "0"))), name


def test_the_backend_s_fields_are_those_an_engine_without_stop_strings_refuses() -> None:
    gated = {path for path in LEAVES if FIELD_RULES[path].capability == "stop_strings"}
    assert paths_of(pb.FIELD_CLASS_BACKEND) == gated != set()


def test_the_values_that_have_a_rule_are_read_by_the_engine() -> None:
    ruled = {path for path in LEAVES if _is_ruled(FIELD_RULES[path])}
    assert ruled <= paths_of(pb.FIELD_CLASS_ENGINE)


def test_opaque_json_is_checked_wherever_there_is_some() -> None:
    opaque = (FIELD_RULES[path] for path in paths_of(pb.FIELD_CLASS_OPAQUE))
    as_bytes = {rule.path: rule.json for rule in opaque if rule.field.type == FieldDescriptor.TYPE_BYTES}
    assert as_bytes
    assert all(as_bytes.values())


def test_every_list_of_token_ids_is_known_as_one() -> None:
    ids = {path for path in paths_of(pb.FIELD_CLASS_ENGINE) if re.search(r"token_ids?(_\w+)?$", path)}
    assert {path for path in ids if not FIELD_RULES[path].token_ids} == set()


def test_the_option_has_a_number_that_protobuf_leaves_to_its_users() -> None:
    assert 50_000 <= pb.rule.number <= 99_999


def _is_ruled(rule: Rule) -> bool:
    return rule.has_range or rule.token_ids or rule.token_count or bool(rule.limit)

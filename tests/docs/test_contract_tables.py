"""The tables of docs/contract.md say what the .proto files say."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from google.protobuf.descriptor import Descriptor

from enginewire import v1 as pb
from enginewire.field_rules import FIELD_RULES
from enginewire.v1.json_text import MAX_BYTES
from enginewire.v1.status_codes import STATUS_CODES
from tests.docs.contract_page import PAGE, ROOT, codes, table

PROTO = ROOT / "proto" / "enginewire" / "v1"
GRPC_CODE = re.compile(
    r"\b(INVALID_ARGUMENT|UNIMPLEMENTED|NOT_FOUND|ALREADY_EXISTS|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|UNAVAILABLE"
    r"|DEADLINE_EXCEEDED|UNAUTHENTICATED|PERMISSION_DENIED|INTERNAL|CANCELLED)\b"
)


def commented_reasons() -> dict[str, str]:
    """Reason without its prefix → the comment above it in error.proto."""
    found: dict[str, str] = {}
    comment = ""
    for line in (PROTO / "error.proto").read_text().splitlines():
        if value := re.match(r"\s+ERROR_REASON_(\w+) = \d+;", line):
            found[value[1]] = comment
        comment = f"{comment} {line.strip()}" if line.strip().startswith("//") else ""
    return found


def leaves(message: Descriptor, prefix: str = "") -> Iterator[str]:
    """Paths of all scalar fields below a message."""
    for field in message.fields:
        if field.message_type is not None:
            yield from leaves(field.message_type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def covers(row: str, path: str) -> bool:
    return path.startswith(row[:-1]) if row.endswith(".*") else path == row


def test_every_error_reason_has_a_row() -> None:
    reasons = [codes(row[0])[0] for row in table("## Errors")]
    expected = [name.removeprefix("ERROR_REASON_") for name in pb.ErrorReason.keys()[1:]]
    assert sorted(reasons) == sorted(expected)


def test_the_codes_of_the_errors_are_those_of_the_proto() -> None:
    comments = commented_reasons()
    for reason, code, *_ in table("## Errors"):
        assert set(codes(code)) == set(GRPC_CODE.findall(comments[codes(reason)[0]])), reason


def test_the_codes_of_the_errors_are_those_our_servers_send() -> None:
    rows = {f"ERROR_REASON_{codes(reason)[0]}": codes(code)[0] for reason, code, *_ in table("## Errors")}
    sent = {pb.ErrorReason.Name(reason): code.name for reason, code in STATUS_CODES.items()}
    # What no server may send is told like a fault of its own.
    assert sent == {"ERROR_REASON_UNSPECIFIED": rows["ERROR_REASON_INTERNAL"], **rows}


def test_errors_that_the_proto_calls_retryable_are_retryable() -> None:
    comments = commented_reasons()
    for reason, _, retryable, _ in table("## Errors"):
        if "retryable" in comments[codes(reason)[0]]:
            assert retryable == "yes", reason


def test_every_request_field_has_exactly_one_class() -> None:
    rows = [codes(row[0])[0] for row in table("## Classes of request fields")]
    for path in leaves(pb.PreprocessedRequest.DESCRIPTOR):
        assert sum(covers(row, path) for row in rows) == 1, path


def test_every_classified_field_exists() -> None:
    paths = list(leaves(pb.PreprocessedRequest.DESCRIPTOR))
    for path, *_ in table("## Classes of request fields"):
        assert any(covers(codes(path)[0], known) for known in paths), path


def test_the_classes_and_capabilities_are_those_of_the_rules() -> None:
    for path, kind, needs in table("## Classes of request fields"):
        rule = FIELD_RULES[codes(path)[0].removesuffix(".*")]
        assert codes(kind) == [pb.FieldClass.Name(rule.field_class).removeprefix("FIELD_CLASS_")], path
        if not needs.startswith("role "):
            assert codes(needs)[:1] == ([rule.capability] if rule.capability else []), path


def test_the_bounds_that_a_limit_may_change_are_those_of_the_rules() -> None:
    bounds = {codes(limit)[0]: int(most) for _, limit, most in table("## Limits") if limit}
    assert bounds == {rule.limit: rule.bound for rule in FIELD_RULES.values() if rule.limit}


def test_the_bounds_of_texts_are_those_of_the_rules() -> None:
    texts = {what: most for what, limit, most in table("## Limits") if not limit}
    for name, path in (("`annotations`", "annotations"), ("`stop`", "stop_conditions.stop")):
        (most,) = (most for what, most in texts.items() if what.startswith(name))
        rule = FIELD_RULES[path]
        assert most == f"{rule.bound} of {rule.max_entry_bytes} bytes each"
    assert texts["opaque JSON, guides"].startswith(f"{MAX_BYTES} bytes each")
    assert {rule.bound for rule in FIELD_RULES.values() if rule.json} == {MAX_BYTES}


def test_the_page_names_the_services_of_the_proto() -> None:
    files = "".join(path.read_text() for path in PROTO.glob("*.proto"))
    assert set(re.findall(r"`(\w+Service)`", PAGE)) == set(re.findall(r"^service (\w+)", files, re.MULTILINE))


def test_the_example_of_the_tokenizer_digest_is_right() -> None:
    content = hashlib.sha256(b"{}").hexdigest()
    lines = "".join(f"{name}\0{2}\0{content}\n" for name in ("tokenizer.json", "tokenizer_config.json"))
    assert f"`{hashlib.sha256(lines.encode()).hexdigest()}`" in PAGE

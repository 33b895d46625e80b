"""The file of callers: hashed keys, names in certificates and tenants, each with its role, weight and limits.

Knows nothing about who calls now.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from enginewire.access.allowance import (
    FIELDS,
    UNBOUNDED,
    Allowance,
    InvalidField,
    read_allowance,
    split_fields,
)
from enginewire.access.roles import WORDS, Role

Key = TypeVar("Key")
Value = TypeVar("Value")

HASH: Final = re.compile(r"sha256:([0-9a-f]{64})")
NAME: Final = re.compile(r"[A-Za-z0-9._:@/*-]{1,128}")
NAME_WORDS: Final = "1 to 128 letters, digits or ._:@/*-"
CERTIFICATE: Final = "certificate"
TENANT: Final = "tenant"
ANY_TENANT: Final = "*"
LINE_WORDS: Final = (
    "a role and a hash, `infer sha256:<64 hexadecimal digits>`, or `certificate NAME`, or `tenant NAME`, and"
    " behind that fields such as `name=chat weight=2`"
)
MOST_FILE_BYTES: Final = 2**20


class InvalidKeys(Exception):
    """Keys that cannot be used; the message names the option and never a key."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key.

    `name` is the operator's, "" for none; it may name tenants if `names_tenants`.
    """

    digest: bytes = field(repr=False)
    role: Role
    name: str = ""
    allowance: Allowance = UNBOUNDED
    names_tenants: bool = False


@dataclass(frozen=True, slots=True)
class Certificate:
    """What callers may do whose certificate has the name."""

    name: str
    role: Role
    allowance: Allowance = UNBOUNDED
    names_tenants: bool = False


@dataclass(frozen=True, slots=True)
class KnownCallers:
    """All that a file says."""

    keys: tuple[ApiKey, ...] = ()
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    tenants: Mapping[str, Allowance] = field(default_factory=dict)


def read_file(path: Path) -> KnownCallers:
    """A caller per line; `#` begins a comment. Raises InvalidKeys."""
    where = f"--api-key-file: {path}"
    keys: dict[bytes, ApiKey] = {}
    certificates: dict[str, Certificate] = {}
    tenants: dict[str, Allowance] = {}
    for number, line in enumerate(_text(path, where).splitlines(), 1):
        if not (words := line.partition("#")[0].split()):
            continue
        try:
            kind, rest = words[0], words[1:]
            if kind == CERTIFICATE:
                certificate = _certificate(rest)
                _put(certificates, certificate.name, certificate)
            elif kind == TENANT:
                _put(tenants, *_tenant(rest))
            else:
                key = _key(kind, rest)
                _put(keys, key.digest, key)
        except InvalidField as error:
            raise InvalidKeys(f"{where}: line {number}: {error}") from None
    if not (keys or certificates or tenants):
        raise InvalidKeys(f"{where}: has no key; each line must be {LINE_WORDS}")
    _check_names(where, keys.values())
    return KnownCallers((*keys.values(),), certificates, tenants)


def _check_names(where: str, keys: Iterable[ApiKey]) -> None:
    """Keys of one name are one caller, as while an old key goes and a new one comes."""
    seen: dict[str, ApiKey] = {}
    for key in keys:
        other = seen.setdefault(key.name, key) if key.name else key
        if (other.allowance, other.names_tenants) != (key.allowance, key.names_tenants):
            raise InvalidKeys(f"{where}: name={key.name}: two keys of one name need the same fields")


def _text(path: Path, where: str) -> str:
    try:
        with path.open(encoding="ascii") as file:
            text = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidKeys(f"{where}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise InvalidKeys(f"{where}: must be ASCII") from error
    if len(text) > MOST_FILE_BYTES:
        raise InvalidKeys(f"{where}: must have at most {MOST_FILE_BYTES} bytes")
    return text


def _put(found: dict[Key, Value], key: Key, value: Value) -> None:
    if key in found:
        raise InvalidField("the same caller twice; each has one line")
    found[key] = value


def _key(word: str, rest: list[str]) -> ApiKey:
    role, match = WORDS.get(word), HASH.fullmatch(rest[0]) if rest else None
    if role is None or match is None:
        raise InvalidField(f"must be {LINE_WORDS}, with a role of {', '.join(WORDS)}")
    fields = split_fields(rest[1:], ("name", "tenants", *FIELDS))
    name = _name(fields["name"], "name") if "name" in fields else ""
    return ApiKey(bytes.fromhex(match[1]), role, name, read_allowance(fields), _names_tenants(fields))


def _certificate(rest: list[str]) -> Certificate:
    name = _name(rest[0] if rest else "", CERTIFICATE)
    fields = split_fields(rest[1:], ("role", "tenants", *FIELDS))
    role = WORDS.get(fields.get("role", Role.INFER.word))
    if role is None:
        raise InvalidField(f"role: must be one of {', '.join(WORDS)}")
    return Certificate(name, role, read_allowance(fields), _names_tenants(fields))


def _tenant(rest: list[str]) -> tuple[str, Allowance]:
    name = _name(rest[0] if rest else "", TENANT)
    return name, read_allowance(split_fields(rest[1:], FIELDS))


def _name(text: str, what: str) -> str:
    if not NAME.fullmatch(text):
        raise InvalidField(f"{what}: must be {NAME_WORDS}")
    return text


def _names_tenants(fields: Mapping[str, str]) -> bool:
    if (value := fields.get("tenants", "no")) not in ("yes", "no"):
        raise InvalidField("tenants: must be yes or no")
    return value == "yes"

"""The folder of hand-offs: who may use it, what is refused, who gets one, and what is swept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import example, given, strategies as st

from enginewire import v1 as pb
from enginewire.server.failures import HandoffInvalid, KvExhausted, QueueFull
from enginewire.server.handoff.claims import Claims
from enginewire.server.handoff.file_format import (
    MAX_HEADER_BYTES,
    PREFIX,
    Header,
    KvLayout,
    MalformedHandoff,
    header_size,
)
from enginewire.server.handoff.folder import KvFolder, KvFolderError
from enginewire.server.handoff.offers import Offers
from enginewire.server.handoff.options import TransferOptions
from enginewire.server.handoff.requests import prompt_digest
from tests.patience import PATIENCE_SECONDS

LAYOUT = KvLayout("model", "float32", 4, ((2, 3, 5), (1, 4, 4)))
REQUEST = pb.PreprocessedRequest(token_ids=[5, 6, 7])
PAYLOAD = bytes(range(192))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv"


@pytest.fixture
def options(path: Path) -> TransferOptions:
    return TransferOptions(path, ttl=30.0, max_bytes=500)


def header_of(payload: bytes = PAYLOAD, **changed: object) -> Header:
    found = Header(
        layout=LAYOUT.digest,
        prompt=prompt_digest(REQUEST, ""),
        num_tokens=2,
        expires_at=time.monotonic() + 30,
        payload_bytes=len(payload),
        payload=sha256(payload).hexdigest(),
    )
    return replace(found, **changed)


def hand_over(folder: KvFolder, payload: bytes = PAYLOAD, **changed: object) -> tuple[str, bytes]:
    name = folder.new_name()
    return name, folder.write(name, header_of(payload, **changed), memoryview(payload))


def claiming(params: bytes) -> pb.PreprocessedRequest:
    request = pb.PreprocessedRequest()
    request.CopyFrom(REQUEST)
    request.prefill_result.handoff.params = params
    return request


def test_the_payload_is_as_large_as_the_layout_says():
    assert LAYOUT.payload_bytes(2) == len(PAYLOAD) == 2 * 4 * (2 * 8 + 8)


@pytest.mark.parametrize(
    "changed", [{"model": "m"}, {"dtype": "x"}, {"item_bytes": 2}, {"layers": ((2, 3, 5), (1, 4, 5))}]
)
def test_layouts_that_differ_have_different_digests(changed):
    assert replace(LAYOUT, **changed).digest != LAYOUT.digest


def test_prompts_salts_and_adapters_cannot_be_shifted_into_each_other():
    requests = [
        pb.PreprocessedRequest(token_ids=[0x61616161], cache_salt=""),
        pb.PreprocessedRequest(token_ids=[], cache_salt="aaaa"),
        pb.PreprocessedRequest(token_ids=[], routing=pb.RoutingHints(lora_name="aaaa")),
        pb.PreprocessedRequest(token_ids=[1, 2]),
        pb.PreprocessedRequest(token_ids=[2, 1]),
    ]
    digests = {prompt_digest(request, "") for request in requests}
    assert len(digests | {prompt_digest(requests[1], "aaaa"), prompt_digest(requests[2], "aaaa")}) == 7


@given(st.binary(max_size=64))
def test_a_beginning_is_read_or_malformed(data):
    try:
        assert header_size(data) <= PREFIX.size + MAX_HEADER_BYTES
    except MalformedHandoff:
        return
    assert len(data) == PREFIX.size


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Header.__annotations__, "other"]), json_values) | json_values)
@example(dict.fromkeys(Header.__annotations__, 0))
def test_a_header_is_read_as_it_was_written_or_malformed(fields):
    data = PREFIX.pack(b"EWKV0001", 0) + json.dumps(fields).encode()
    try:
        found = Header.from_bytes(data)
    except MalformedHandoff:
        return
    assert json.dumps(asdict(found), sort_keys=True) == json.dumps(fields, sort_keys=True)


def test_a_deeply_nested_header_is_malformed():
    with pytest.raises(MalformedHandoff):
        Header.from_bytes(bytes(PREFIX.size) + b"[" * 200_000)


def test_what_was_written_is_read_by_the_one_who_takes_it(path):
    giver, taker = KvFolder(path), KvFolder(path)
    name, params = hand_over(giver)
    found = taker.find(params)
    assert giver.is_there(name)
    found.take()
    assert not giver.is_there(name)
    assert found.read() == PAYLOAD
    found.close()
    for folder in (giver, taker):
        folder.close()
    assert os.listdir(path) == []


def test_of_many_takers_one_gets_it(path):
    folder = KvFolder(path)
    barrier = Barrier(8)

    def take(params: bytes) -> bool:
        found = folder.find(params)
        try:
            barrier.wait(PATIENCE_SECONDS)
            found.take()
        except HandoffInvalid:
            return False
        finally:
            found.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            params = hand_over(folder)[1]
            assert sum(pool.map(take, [params] * 8)) == 1
    folder.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"",
        lambda data: b"x" + data[1:],
        lambda data: data.replace(b'"num_tokens": 2', b'"num_tokens": 9'),
    ],
)
def test_a_file_that_was_changed_is_refused(path, change):
    folder = KvFolder(path)
    name, params = hand_over(folder)
    file = path / f"{name}.kv"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(HandoffInvalid):
        folder.find(params)
    folder.close()


def test_damaged_keys_and_values_are_noticed_when_they_are_read(path):
    folder = KvFolder(path)
    name, params = hand_over(folder)
    file = path / f"{name}.kv"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    found = folder.find(params)
    with pytest.raises(HandoffInvalid):
        found.read()
    found.close()
    folder.close()


@pytest.mark.parametrize("kind", ["symlink", "fifo", "folder"])
def test_what_is_no_plain_file_is_refused_at_once(path, tmp_path, kind):
    folder = KvFolder(path)
    name, params = hand_over(folder)
    file = path / f"{name}.kv"
    if kind == "symlink":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        file.unlink()
        os.mkfifo(file) if kind == "fifo" else file.mkdir()
    with pytest.raises(HandoffInvalid):
        folder.find(params)
    if kind == "folder":
        file.rmdir()
    folder.close()


def test_an_expired_hand_off_is_refused_before_it_is_freed(path):
    folder = KvFolder(path)
    _, params = hand_over(folder, expires_at=time.monotonic() - 0.001)
    with pytest.raises(HandoffInvalid):
        folder.find(params)
    folder.close()


@pytest.mark.parametrize(
    ("changed", "payload"),
    [
        ({"layout": "0" * 64}, PAYLOAD),
        ({"prompt": "0" * 64}, PAYLOAD),
        ({"num_tokens": 3}, PAYLOAD),
        ({"num_tokens": 1}, PAYLOAD),
        ({}, PAYLOAD[:-1]),
        ({}, PAYLOAD + b"x"),
    ],
)
def test_a_hand_off_that_does_not_fit_is_refused_and_stays(path, options, changed, payload):
    folder = KvFolder(path)
    name, params = hand_over(folder, payload, **changed)
    claims = Claims(folder, options, LAYOUT)
    with pytest.raises(HandoffInvalid) as refusal:
        claims.claim(claiming(params), "")
    assert str(path) not in str(refusal.value)
    assert folder.is_there(name)
    folder.close()


def test_claims_are_bounded_and_a_refused_one_stays(path, options):
    folder = KvFolder(path)
    claims = Claims(folder, options, LAYOUT)
    names, params = zip(*(hand_over(folder) for _ in range(3)), strict=True)
    first, second = (claims.claim(claiming(each), "") for each in params[:2])
    with pytest.raises(QueueFull):
        claims.claim(claiming(params[2]), "")
    assert folder.is_there(names[2])
    assert first.read() == PAYLOAD
    first.release()
    first.release()
    third = claims.claim(claiming(params[2]), "")
    assert third.read() == second.read() == PAYLOAD
    with pytest.raises(HandoffInvalid):
        claims.claim(claiming(params[2]), "")
    small = Claims(folder, TransferOptions(path, max_bytes=100), LAYOUT)
    with pytest.raises(KvExhausted):
        small.claim(claiming(hand_over(folder)[1]), "")
    folder.close()


def test_a_claim_that_fails_holds_no_memory(path, options):
    folder = KvFolder(path)
    claims = Claims(folder, options, LAYOUT)
    for _ in range(5):
        name, params = hand_over(folder)
        other = folder.find(params)
        folder.remove(name)
        with pytest.raises(HandoffInvalid):
            claims.claim(claiming(params), "")
        other.close()
    assert claims.claim(claiming(hand_over(folder)[1]), "").read() == PAYLOAD
    folder.close()


async def test_offers_are_bounded_and_freed(path, options):
    folder = KvFolder(path)
    offers = Offers(folder, options)
    made = [offers.reserve(f"r{i}", 250) for i in range(2)]
    with pytest.raises(QueueFull):
        offers.reserve("r", 1)
    with pytest.raises(KvExhausted):
        offers.reserve("r", 501)
    for offer in made:
        offers.write(offer, LAYOUT, prompt_digest(REQUEST, ""), 2, memoryview(PAYLOAD))
        offers.publish(offer)
    offers.discard("r0")
    assert [folder.is_there(offer.name) for offer in made] == [False, True]
    assert (offers.num_pending, offers.num_bytes) == (1, 250)
    offers.close()
    assert not folder.is_there(made[1].name)
    folder.close()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_folder_that_others_can_enter_is_refused(path, mode):
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(KvFolderError, match="0700"):
        KvFolder(path)


def test_a_folder_behind_a_link_or_that_is_a_file_is_refused(path, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    path.symlink_to(tmp_path / "real")
    with pytest.raises(KvFolderError):
        KvFolder(path)
    path.unlink()
    path.touch()
    with pytest.raises(KvFolderError):
        KvFolder(path)


def test_folder_and_files_are_for_their_owner_alone(path):
    folder = KvFolder(path)
    hand_over(folder)
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}
    folder.close()


HOLDER = """
import sys, time
from pathlib import Path
from enginewire.server.handoff.folder import KvFolder
from tests.server.handoff.test_handoff import hand_over
folder = KvFolder(Path(sys.argv[1]))
print(hand_over(folder)[1].decode(), flush=True)
time.sleep(60)
"""


def test_what_a_killed_engine_left_behind_is_swept_and_nothing_else(path):
    living = KvFolder(path)
    name, _ = hand_over(living)
    (path / "of-someone-else").touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        params = other.stdout.readline().strip().encode()
        living.sweep()
        living.find(params).close()
        other.send_signal(signal.SIGKILL)
    living.find(params).close()
    living.sweep()
    with pytest.raises(HandoffInvalid):
        living.find(params)
    assert living.is_there(name)
    assert len(os.listdir(path)) == 3, "our lock, our hand-off, and a file that is none of ours"
    living.close()


def test_a_hand_off_that_cannot_be_written_leaves_nothing(path, monkeypatch):
    folder = KvFolder(path)

    def full(file: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="space"):
        hand_over(folder)
    monkeypatch.undo()
    assert len(os.listdir(path)) == 1
    folder.close()

"""Streams of parts that belong together: the tokenizer's files and the events of a prefix cache."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.monitor.facts import Seen, messages_of
from enginewire.conformance.running.monitor.invariant import of_calls
from enginewire.conformance.wire.violation import expect, expect_equal

MOST_CHUNK: Final = 1024 * 1024


@of_calls("TOK-01")
def a_manifest_comes_first(seen: Seen) -> None:
    """Once, with plain names."""
    pieces = _pieces(seen)
    kinds = [piece.WhichOneof("piece") for piece in pieces]
    expected = ["manifest", *["chunk"] * (len(kinds) - 1)]
    expect(not kinds or kinds == expected, "the pieces are not one manifest, then chunks", seen=kinds[:8])
    for file in pieces[0].manifest.files if pieces else ():
        plain = file.name and "/" not in file.name and "\\" not in file.name and file.name not in (".", "..")
        expect(plain, "a file of the tokenizer has no plain name", seen=file.name)


@of_calls("TOK-02", needs=("TOK-01",))
def chunks_are_in_order(seen: Seen) -> None:
    """Of their file, and the files that of the manifest; as much as it says, where all came."""
    pieces = _pieces(seen)
    read: dict[str, int] = {}
    for piece in pieces[1:]:
        chunk = piece.chunk
        expect_equal(chunk.offset, read.setdefault(chunk.name, 0), f"a chunk of {chunk.name} is out of order")
        read[chunk.name] += len(chunk.data)
    if seen.exchange.is_ok and read:
        sizes = {file.name: file.size for file in pieces[0].manifest.files if file.size}
        expect_equal(list(read.items()), list(sizes.items()), "the files are not those of the manifest")


@of_calls("TOK-03", needs=("TOK-01",))
def digests_are_computed_as_written(seen: Seen) -> None:
    """From names, sizes and digests, in the order of the names' bytes."""
    for piece in _pieces(seen)[:1]:
        files = sorted(piece.manifest.files, key=lambda file: file.name.encode())
        lines = "".join(f"{file.name}\0{file.size}\0{file.sha256}\n" for file in files)
        digest = hashlib.sha256(lines.encode()).hexdigest()
        expect_equal(piece.manifest.digest, digest, "the digest is not the one of docs/contract.md")


@of_calls("TOK-04", needs=("TOK-01",))
def current_copies_are_not_sent(seen: Seen) -> None:
    """And any other one is."""
    request, pieces = seen.exchange.request, _pieces(seen)
    if isinstance(request, pb.GetTokenizerRequest) and pieces and seen.exchange.is_ok:
        manifest = pieces[0].manifest
        is_current = request.if_none_match == manifest.digest
        is_whole = len(pieces) > 1 or not any(file.size for file in manifest.files)
        message = "if_none_match does not say what is sent"
        expect(is_current != is_whole, message, seen=f"{len(pieces)} pieces")


@of_calls("TOK-05", needs=("TOK-01",))
def chunks_are_small(seen: Seen) -> None:
    """Every one of them."""
    largest = max((len(piece.chunk.data) for piece in _pieces(seen)), default=0)
    limit = f"at most {MOST_CHUNK} bytes"
    expect(largest <= MOST_CHUNK, "a chunk is too large", expected=limit, seen=largest)


@of_calls("KVE-03")
def sequences_grow_by_one(seen: Seen) -> None:
    """After the events of a snapshot, which all have the same number."""
    events = _events(seen)
    begins_with_snapshot = bool(events) and events[0].HasField("cleared")
    in_snapshot = begins_with_snapshot
    for earlier, later in pairwise(events):
        in_snapshot = in_snapshot and later.sequence == earlier.sequence
        expected = earlier.sequence + (0 if in_snapshot else 1)
        expect_equal(later.sequence, expected, "sequence does not grow by 1")


@of_calls("KVE-04")
def stored_blocks_have_their_tokens(seen: Seen) -> None:
    """As many per block as the block size."""
    for event in _events(seen):
        if event.HasField("stored"):
            tokens, stored = len(event.stored.token_ids), event.stored
            expected = stored.block_size * len(stored.block_hashes)
            expect(stored.block_hashes, "a stored event names no block")
            expect_equal(tokens, expected, "a stored event has not block_size token ids per block")


def _pieces(seen: Seen) -> list[pb.GetTokenizerResponse]:
    return messages_of(seen.exchange, pb.GetTokenizerResponse)


def _events(seen: Seen) -> list[pb.KvEvent]:
    """All events of a subscription, in order."""
    answers = messages_of(seen.exchange, pb.SubscribeKvEventsResponse)
    return [event for answer in answers for event in answer.events]

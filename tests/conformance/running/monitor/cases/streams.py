"""Streams of files and of KV events."""

from __future__ import annotations

from collections.abc import Callable

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.cases.register import breaks
from tests.conformance.running.monitor.made import called

DATA = b"{}"
SHA = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
DIGEST = "29e88a1396af11701978d989b57a561c6f3e65f75c0e72c093952c3bb49edc02"
FILES = [
    pb.TokenizerFile(name=name, size=2, sha256=SHA) for name in ("tokenizer.json", "tokenizer_config.json")
]


def tokenizer(change: Callable[[list[pb.GetTokenizerResponse]], object], if_none_match: str = "") -> Exchange:
    """The two files of the example in docs/contract.md, changed."""
    manifest = pb.TokenizerManifest(digest=DIGEST, files=FILES)
    pieces = [pb.GetTokenizerResponse(manifest=manifest)]
    for file in FILES:
        pieces.append(pb.GetTokenizerResponse(chunk=pb.TokenizerChunk(name=file.name, data=DATA)))
    change(pieces)
    return called(
        "DiscoveryService.GetTokenizer", pb.GetTokenizerRequest(if_none_match=if_none_match), *pieces
    )


breaks("a_manifest_comes_first", "last")(lambda: tokenizer(lambda pieces: pieces.reverse()))
breaks("chunks_are_in_order", "an offset")(
    lambda: tokenizer(lambda pieces: setattr(pieces[1].chunk, "offset", 1))
)
breaks("chunks_are_in_order", "a file is missing")(lambda: tokenizer(lambda pieces: pieces.pop()))
breaks("digests_are_computed_as_written", "x")(
    lambda: tokenizer(lambda pieces: setattr(pieces[0].manifest, "digest", "x"))
)
breaks("current_copies_are_not_sent", "it is")(lambda: tokenizer(lambda pieces: None, DIGEST))
breaks("chunks_are_small", "2 MiB")(
    lambda: tokenizer(lambda pieces: setattr(pieces[1].chunk, "data", bytes(2**21)))
)


def cached(*changes: pb.KvEvent) -> Exchange:
    """A subscription that begins with a snapshot."""
    cleared = pb.KvEvent(sequence=7, cleared=pb.KvCacheCleared())
    answer = pb.SubscribeKvEventsResponse(events=[cleared, *changes])
    return called("KvService.SubscribeKvEvents", pb.SubscribeKvEventsRequest(), answer, code=None)


def stored(sequence: int, tokens: int = 16) -> pb.KvEvent:
    """One block."""
    block = pb.KvBlocksStored(block_hashes=[1], token_ids=[5] * tokens, block_size=16)
    return pb.KvEvent(sequence=sequence, stored=block)


breaks("sequences_grow_by_one", "a gap")(lambda: cached(stored(7), stored(8), stored(10)))
breaks("stored_blocks_have_their_tokens", "fifteen")(lambda: cached(stored(8, tokens=15)))

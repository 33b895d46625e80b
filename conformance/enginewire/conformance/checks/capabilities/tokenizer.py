"""TOK: the tokenizer's files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final, cast

import grpc

from enginewire import v1 as pb
from enginewire.conformance.running.registry import check, negative
from enginewire.conformance.session.context import LEFT_OUT, Context, require_refusal
from enginewire.conformance.wire.violation import Violation, expect, expect_equal

NAME: Final = "DiscoveryService.GetTokenizer"
MOST: Final = 1024 * 1024
HEX: Final = re.compile(r"[0-9a-f]{64}")
READ: Final = "TOK-01"


@dataclass(frozen=True, slots=True)
class Pieces:
    """One answer, taken apart."""

    manifest: pb.TokenizerManifest
    chunks: list[pb.TokenizerChunk]


@check("TOK-01")
async def a_manifest_comes_first(ctx: Context) -> None:
    """Once, with files that have plain names."""
    pieces = await _read(ctx)
    expect(pieces.manifest.files, "the manifest names no file")
    for file in pieces.manifest.files:
        plain = file.name and "/" not in file.name and "\\" not in file.name and file.name not in (".", "..")
        expect(plain, "a file of the tokenizer has no plain name", seen=file.name)


@check("TOK-02", needs=(READ,))
async def content_is_what_the_manifest_says(ctx: Context) -> None:
    """Order, offsets, size and SHA-256 of every file."""
    pieces = await _read(ctx)
    content: dict[str, bytes] = {}
    for chunk in pieces.chunks:
        so_far = content.setdefault(chunk.name, b"")
        expect_equal(chunk.offset, len(so_far), f"a chunk of {chunk.name} is out of order")
        content[chunk.name] = so_far + chunk.data
    names = [file.name for file in pieces.manifest.files if file.size]
    expect_equal(list(content), names, "the files do not come in the manifest's order")
    for file in pieces.manifest.files:
        data = content.get(file.name, b"")
        expect_equal(len(data), file.size, f"{file.name} has another size")
        expect_equal(hashlib.sha256(data).hexdigest(), file.sha256, f"{file.name} has another SHA-256")


@check("TOK-03", needs=(READ,))
async def the_digest_is_computed_as_written(ctx: Context) -> None:
    """From names, sizes and digests, in the order of the names' bytes."""
    manifest = (await _read(ctx)).manifest
    expect(HEX.fullmatch(manifest.digest), "the digest is not 64 lower-case hex digits", seen=manifest.digest)
    files = sorted(manifest.files, key=lambda file: file.name.encode())
    lines = "".join(f"{file.name}\0{file.size}\0{file.sha256}\n" for file in files)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    expect_equal(manifest.digest, digest, "the digest is not the one of docs/contract.md")


@check("TOK-04", needs=(READ,))
async def a_current_copy_is_not_sent_again(ctx: Context) -> None:
    """With the digest only the manifest comes; with another one everything."""
    whole = await _read(ctx)
    same = await _read(ctx, whole.manifest.digest)
    expect(not same.chunks, "content is sent to a caller that has it", expected=0, seen=len(same.chunks))
    expect_equal(same.manifest, whole.manifest, "the manifest is another one with if_none_match")
    last = "0" if whole.manifest.digest[-1] != "0" else "1"
    for digest in ("0" * 64, whole.manifest.digest[:-1] + last):
        other = await _read(ctx, digest)
        expect_equal(
            len(other.chunks), len(whole.chunks), "content is missing for a caller with another copy"
        )


@check("TOK-05", needs=(READ,))
async def chunks_are_small(ctx: Context) -> None:
    """Every one of them."""
    largest = max((len(chunk.data) for chunk in (await _read(ctx)).chunks), default=0)
    expect(largest <= MOST, "a chunk is too large", expected=f"at most {MOST} bytes", seen=largest)


@negative("tokenizer")
async def there_is_no_tokenizer(ctx: Context) -> None:
    """For a caller without one, and for one that has a copy; NOT_FOUND says it as well."""
    for digest in ("", "0" * 64):
        exchange = await ctx.client.ask(NAME, pb.GetTokenizerRequest(if_none_match=digest))
        require_refusal(exchange, (*LEFT_OUT, grpc.StatusCode.NOT_FOUND))


async def _read(ctx: Context, if_none_match: str = "") -> Pieces:
    any_size = ctx.connect(None, ("grpc.max_receive_message_length", -1))
    request = pb.GetTokenizerRequest(if_none_match=if_none_match)
    exchange = await any_size.ask(NAME, request, timeout=ctx.bounds.check / 4)
    expect(exchange.is_ok, f"{NAME} failed", expected="OK", seen=exchange.status)
    pieces = [cast(pb.GetTokenizerResponse, message) for message in exchange.messages]
    kinds = [piece.WhichOneof("piece") for piece in pieces]
    if kinds != ["manifest", *["chunk"] * (len(kinds) - 1)]:
        raise Violation("the pieces are not one manifest, then chunks", seen=kinds[:8])
    return Pieces(pieces[0].manifest, [piece.chunk for piece in pieces[1:]])

"""Servers whose tokenizer cannot be trusted."""

from __future__ import annotations

from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.mutants import each_changed, mutant
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import without

Pieces = AsyncIterator[pb.GetTokenizerResponse]
MIB = 1024 * 1024


@mutant("tokenizer_without_manifest", kills="TOK-01")
class TokenizerWithoutManifest(Reference):
    async def tokenizer(self, request: pb.GetTokenizerRequest) -> Pieces:
        async for piece in super().tokenizer(request):
            if piece.HasField("chunk"):
                yield piece


@each_changed(Reference.tokenizer, "tokenizer_names_a_folder", kills="TOK-01")
def tokenizer_names_a_folder(piece: pb.GetTokenizerResponse) -> None:
    for file in piece.manifest.files if piece.HasField("manifest") else ():
        file.name = f"model/{file.name}"


@each_changed(Reference.tokenizer, "tokenizer_chunk_lost", kills="TOK-02")
def tokenizer_chunk_lost(piece: pb.GetTokenizerResponse) -> None:
    if piece.HasField("chunk"):
        piece.chunk.data = piece.chunk.data[:-1]


@each_changed(Reference.tokenizer, "tokenizer_offset_wrong", kills="TOK-02")
def tokenizer_offset_wrong(piece: pb.GetTokenizerResponse) -> None:
    if piece.HasField("chunk"):
        piece.chunk.offset = 1


@mutant("tokenizer_digest_of_content", kills="TOK-03")
class TokenizerDigestOfContent(Reference):
    async def tokenizer(self, request: pb.GetTokenizerRequest) -> Pieces:
        async for piece in super().tokenizer(request):
            if piece.HasField("manifest"):
                digest = piece.manifest.digest
                piece.manifest.digest = piece.manifest.files[0].sha256
                if request.if_none_match == piece.manifest.digest:
                    yield piece
                    return
                assert digest != piece.manifest.digest
            yield piece


@mutant("tokenizer_digest_by_its_beginning", kills="TOK-04")
class TokenizerDigestByItsBeginning(Reference):
    async def tokenizer(self, request: pb.GetTokenizerRequest) -> Pieces:
        asked = request.if_none_match[:16]
        async for piece in super().tokenizer(pb.GetTokenizerRequest()):
            yield piece
            if piece.HasField("manifest") and asked and piece.manifest.digest.startswith(asked):
                return


@mutant("tokenizer_sent_again", kills="TOK-04")
class TokenizerSentAgain(Reference):
    async def tokenizer(self, request: pb.GetTokenizerRequest) -> Pieces:
        request.ClearField("if_none_match")
        async for piece in super().tokenizer(request):
            yield piece


@mutant("tokenizer_never_sent", kills="TOK-04")
class TokenizerNeverSent(Reference):
    async def tokenizer(self, request: pb.GetTokenizerRequest) -> Pieces:
        async for piece in super().tokenizer(request):
            if piece.HasField("manifest") or not request.if_none_match:
                yield piece


@mutant("tokenizer_chunk_too_large", kills="TOK-05")
class TokenizerChunkTooLarge(Reference):
    def tokenizer_file(self) -> bytes:
        return super().tokenizer_file() + b" " * (2 * MIB)


@mutant("tokenizer_unadvertised", kills="ERR-17/tokenizer")
class TokenizerUnadvertised(Reference):
    settings = without("tokenizer")

    def require(self, capability: str) -> None:
        if capability != "tokenizer":
            super().require(capability)


@mutant("whoever_has_a_tokenizer_has_this_one", kills="ERR-17/tokenizer")
class WhoeverHasATokenizerHasThisOne(Reference):
    settings = without("tokenizer")

    async def tokenizer(self, request: pb.GetTokenizerRequest) -> Pieces:
        if request.if_none_match:
            yield pb.GetTokenizerResponse(manifest=pb.TokenizerManifest(digest=request.if_none_match))
            return
        async for piece in super().tokenizer(request):
            yield piece

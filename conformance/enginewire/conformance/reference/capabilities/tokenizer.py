"""The reference's tokenizer: a token per ASCII character, and the file that says so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from functools import cached_property

from enginewire import v1 as pb
from enginewire.byte_level import CHARACTER_OF_BYTE
from enginewire.conformance.reference.service import Answer, Service

FILE = "tokenizer.json"


class Tokenizer(Service):
    """Serves GetTokenizer, and knows the text of every token."""

    def parts(self) -> dict[str, Answer]:
        """With GetTokenizer."""
        return {
            **super().parts(),
            "DiscoveryService.GetTokenizer": lambda request, call: self.tokenizer(request),
        }

    async def tokenizer(self, request: pb.GetTokenizerRequest) -> AsyncIterator[pb.GetTokenizerResponse]:
        """The manifest, then the one file unless the caller has it."""
        self.require("tokenizer")
        content = self.tokenizer_file()
        sha256 = hashlib.sha256(content).hexdigest()
        digest = hashlib.sha256(f"{FILE}\0{len(content)}\0{sha256}\n".encode()).hexdigest()
        file = pb.TokenizerFile(name=FILE, size=len(content), sha256=sha256)
        yield pb.GetTokenizerResponse(manifest=pb.TokenizerManifest(digest=digest, files=[file]))
        if request.if_none_match != digest:
            yield pb.GetTokenizerResponse(chunk=pb.TokenizerChunk(name=FILE, data=content))

    def tokenizer_file(self) -> bytes:
        """The file, in the format of the `tokenizers` library."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
        special = [{"id": token, "content": f"<{token}>", "special": True} for token in self.special_ids()]
        model = {"type": "BPE", "vocab": self.vocabulary(), "merges": []}
        content = {
            "added_tokens": special,
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": model,
        }
        return json.dumps(content).encode()

    def special_ids(self) -> list[int]:
        """Ids without a text."""
        return list(self.config.eos_token_ids)

    def vocabulary(self) -> dict[str, int]:
        """Every token's name."""
        ids = set(range(self.config.vocab_size)) - set(self.special_ids())
        return {CHARACTER_OF_BYTE[token]: token for token in sorted(ids) if token in CHARACTER_OF_BYTE}

    def token_text(self, token: int) -> str:
        """What a token reads like."""
        return self._texts[token] if token < len(self._texts) else ""

    @cached_property
    def _texts(self) -> list[str]:
        special = self.special_ids()
        return ["" if token in special else chr(token) for token in range(self.config.vocab_size)]

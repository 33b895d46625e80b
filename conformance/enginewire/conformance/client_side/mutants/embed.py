"""Backends whose embeddings are wrong."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.client_side.mutants import client_mutant
from enginewire.conformance.client_side.reference.backend import ReferenceBackend


@client_mutant("embeds_no_more_than_a_byte", kills="CLI-40")
class EmbedsAByte(ReferenceBackend):
    def token_ids_of(self, given: pb.EmbeddingInput) -> list[int]:
        return super().token_ids_of(given)[:1]

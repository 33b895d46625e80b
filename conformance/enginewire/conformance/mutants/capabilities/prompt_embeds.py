"""Servers that do not read the embeddings of a prompt, or those of another one."""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.conformance.mutants import mutant
from enginewire.conformance.reference.server import Reference


@mutant("no_width_of_embeddings", kills="INF-14")
class NoWidthOfEmbeddings(Reference):
    def engine_config(self) -> pb.EngineConfig:
        config = super().engine_config()
        config.ClearField("hidden_size")
        return config


@mutant("embeddings_of_any_width", kills="INF-14")
class EmbeddingsOfAnyWidth(Reference):
    def check_embeds(self, tensor: pb.Tensor) -> None:
        pass


@mutant("embeddings_are_not_read", kills="INF-09/prompt-embeds")
class EmbeddingsAreNotRead(Reference):
    def tokens_of(self, tensor: pb.Tensor) -> list[int]:
        return [1] * len(super().tokens_of(tensor))


@mutant("embeddings_of_a_length_are_those_before", kills="INF-09/prompt-embeds")
class EmbeddingsOfALengthAreThoseBefore(Reference):
    """Their blocks are found by what stands for their token ids."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[int, list[int]] = {}

    def check_prompt(self, request: pb.PreprocessedRequest) -> None:
        super().check_prompt(request)
        if request.HasField("prompt_embeds") and not request.bypass_prefix_cache:
            tokens = list(request.token_ids)
            begin = self._found.setdefault(len(tokens), tokens)[: self.settings.block_size]
            request.token_ids[: len(begin)] = begin

"""The two roles of disaggregation in the reference: prefill hands over, decode fetches.

Hand-offs are fetched over a socket of the prefill engine, named by host and port; their parameters are
a random name. "KV" is nothing but a digest of the prompt here.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from dataclasses import dataclass, replace
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.generation.job import Choice, Job
from enginewire.conformance.reference.refusal import Refusal
from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.settings import Settings

HOST: Final = "127.0.0.1"
NAME_BYTES: Final = 16
TTL_SECONDS: Final = 2.0
PREFILL_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Pending:
    """A prompt nobody has claimed."""

    request_id: str
    digest: bytes
    until: float


class Prefill(Reference):
    """Computes prompts."""

    settings = replace(Settings(), role=pb.ENGINE_ROLE_PREFILL, first_token_seconds=PREFILL_SECONDS)

    def __init__(self) -> None:
        super().__init__()
        self.pending: dict[bytes, Pending] = {}
        self._rendezvous: asyncio.Server | None = None

    def other_half(self) -> type[Reference]:
        """What goes on with its prompts."""
        return Decode

    async def open_parts(self) -> None:
        """Wait for decode engines."""
        await super().open_parts()
        self._rendezvous = await asyncio.start_server(self.hand_out, HOST, 0)

    async def close_parts(self) -> None:
        """Wait no more."""
        if self._rendezvous:
            self._rendezvous.close()
        await super().close_parts()

    async def hand_out(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one decode engine."""
        brought = await reader.read()
        name, digest = brought[:NAME_BYTES], brought[NAME_BYTES:]
        found = self.claimed(name) if self.is_for(name, digest) else self.pending.get(name)
        writer.write(found.digest if found else b"")
        writer.close()

    def is_for(self, name: bytes, digest: bytes) -> bool:
        """Whether a hand-off is of this prompt, so that who asks may have it; also when it is unknown."""
        return name not in self.pending or self.pending[name].digest == digest

    def claimed(self, name: bytes) -> Pending | None:
        """A hand-off, which is nobody else's from now on."""
        self.forget_old()
        return self.pending.pop(name, None)

    def forget_old(self) -> None:
        """Free what nobody came for."""
        now = time.monotonic()
        self.pending = {name: pending for name, pending in self.pending.items() if pending.until > now}

    def job(self, request_id: str, request: pb.PreprocessedRequest, deadline: float = float("inf")) -> Job:
        """One choice is enough: there is one prompt."""
        job = super().job(request_id, request, deadline)
        job.choices = job.choices[:1]
        return job

    def advance(self, choice: Choice) -> pb.LLMEngineOutput:
        """The whole answer."""
        if choice.job.request.is_probe:
            return super().advance(choice)
        output = pb.LLMEngineOutput(index=choice.index)
        self.end(choice, output, pb.FINISH_REASON_LENGTH)
        output.prefill_handoff.CopyFrom(self.hand_over(choice.job))
        return output

    def hand_over(self, job: Job) -> pb.PrefillHandoff:
        """Keep the prompt for the one who comes with this."""
        assert self._rendezvous is not None
        name = secrets.token_bytes(NAME_BYTES)
        until = time.monotonic() + TTL_SECONDS
        self.pending[name] = Pending(job.request_id, digest_of(job.request), until)
        port = self._rendezvous.sockets[0].getsockname()[1]
        return pb.PrefillHandoff(params=name, host=HOST, port=port, ttl_seconds=TTL_SECONDS)

    def abort_id(self, request_id: str) -> pb.AbortOutcome.ValueType:
        """A hand-off that is not wanted any more is freed."""
        self.pending = {
            name: pending for name, pending in self.pending.items() if pending.request_id != request_id
        }
        return super().abort_id(request_id)

    def is_busy(self) -> bool:
        """While somebody may still come for a prompt."""
        self.forget_old()
        return super().is_busy() or bool(self.pending)

    def load(self) -> pb.Load:
        """With what nobody has claimed."""
        self.forget_old()
        load = super().load()
        load.pending_transfers = len(self.pending)
        return load


class Decode(Reference):
    """Goes on from prompts that were computed elsewhere."""

    settings = replace(Settings(), role=pb.ENGINE_ROLE_DECODE)

    def other_half(self) -> type[Reference]:
        """What computes its prompts."""
        return Prefill

    def check_role(self, request: pb.PreprocessedRequest) -> None:
        """Nothing goes without a hand-off."""
        if not (request.HasField("prefill_result") or request.is_probe):
            reason = pb.ERROR_REASON_ROLE_MISMATCH
            raise Refusal(reason, "prefill_result: is missing on a decode engine", field="prefill_result")

    async def claim(self, request: pb.PreprocessedRequest) -> None:
        """Fetch what belongs to the hand-off."""
        if request.HasField("prefill_result"):
            fetched = await self.fetch(request.prefill_result.handoff, digest_of(request))
            if fetched != digest_of(request):
                raise Refusal(pb.ERROR_REASON_HANDOFF_INVALID, "the hand-off is not known here")

    async def fetch(self, handoff: pb.PrefillHandoff, digest: bytes) -> bytes:
        """What the prefill engine kept for this prompt, or for another one; empty when there is none."""
        try:
            reader, writer = await asyncio.open_connection(HOST, handoff.port)
        except (OSError, OverflowError):
            return b""
        writer.write(handoff.params + digest)
        writer.write_eof()
        found = await reader.read()
        writer.close()
        return found

    def usage(self, job: Job) -> pb.CompletionUsage:
        """The prompt's details are those of the other half."""
        usage = super().usage(job)
        if job.request.HasField("prefill_result"):
            usage.prompt_tokens_details.CopyFrom(job.request.prefill_result.prompt_tokens_details)
        return usage


def digest_of(request: pb.PreprocessedRequest) -> bytes:
    """What the keys and values of a prompt depend on."""
    return hashlib.sha256(repr((request.cache_salt, list(request.token_ids))).encode()).digest()

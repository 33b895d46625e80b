"""The hand-offs that one decode engine takes: checked against the request, taken once, bounded in memory.

Belongs to the event loop, except for `Claim.read` and `Claim.release`. Knows nothing about torch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from enginewire import v1 as pb
from enginewire.server.failures import KvExhausted, QueueFull
from enginewire.server.handoff.file_format import Header, KvLayout
from enginewire.server.handoff.folder import FoundHandoff, KvFolder, invalid
from enginewire.server.handoff.options import TransferOptions
from enginewire.server.handoff.requests import prompt_digest

RETRY_SECONDS = 1.0


class Claim:
    """A hand-off that nobody else can take any more. Every claim ends with `release`."""

    def __init__(self, found: FoundHandoff, release: Callable[[], None]) -> None:
        self.num_tokens = found.header.num_tokens
        self._found = found
        self._release: Callable[[], None] | None = release

    def read(self) -> bytearray:
        """The keys and values. Blocks. Raises HandoffInvalid when they are damaged, OSError."""
        try:
            return self._found.read()
        finally:
            self._found.close()

    def release(self) -> None:
        """The keys and values are needed no more. Idempotent; any thread."""
        release, self._release = self._release, None
        if release:
            release()


class Claims:
    """What this engine has taken and not computed with yet."""

    def __init__(self, folder: KvFolder, options: TransferOptions, layout: KvLayout) -> None:
        self._folder = folder
        self._options = options
        self._layout = layout
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def claim(self, request: pb.PreprocessedRequest, adapter: str) -> Claim:
        """Take the hand-off of a request that is valid otherwise. `adapter` as in `prompt_digest`.

        Raises HandoffInvalid, and QueueFull or KvExhausted when there is no memory for it; then it is
        still there for others.
        """
        handoff = request.prefill_result.handoff
        if handoff.HasField("host") or handoff.HasField("port") or handoff.HasField("room"):
            raise invalid("not a hand-off of this kind of engine")
        found = self._folder.find(handoff.params)
        try:
            self._check(found.header, request, adapter)
            self._take_room(found.header.payload_bytes)
        except BaseException:
            found.close()
            raise
        claim = Claim(found, lambda: self._give_room(found.header.payload_bytes))
        try:
            found.take()
        except BaseException:
            found.close()
            claim.release()
            raise
        return claim

    def sweep_regularly(self) -> None:
        """Remove what dead prefill engines leave behind, now and then."""
        self._folder.sweep()
        self._timer = asyncio.get_running_loop().call_later(self._options.ttl, self.sweep_regularly)

    def close(self) -> None:
        """Sweep no more."""
        if self._timer:
            self._timer.cancel()

    def _check(self, header: Header, request: pb.PreprocessedRequest, adapter: str) -> None:
        if header.layout != self._layout.digest:
            raise invalid("computed by another model, or with another dtype, kv_cache_dtype or quantization")
        if header.prompt != prompt_digest(request, adapter):
            raise invalid("computed for another prompt, adapter or cache_salt")
        num_tokens, size = header.num_tokens, header.payload_bytes
        if num_tokens != len(request.token_ids) - 1 or size != self._layout.payload_bytes(num_tokens):
            raise invalid("not a hand-off of this kind of engine")

    def _take_room(self, num_bytes: int) -> None:
        limit = self._options.max_bytes
        if num_bytes > limit:
            raise KvExhausted(f"the hand-off has {num_bytes} bytes, allowed {limit}")
        with self._lock:
            if self._num_bytes + num_bytes > limit:
                raise QueueFull("too many hand-offs wait for their turn", retry_after=RETRY_SECONDS)
            self._num_bytes += num_bytes

    def _give_room(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes -= num_bytes

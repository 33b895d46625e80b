"""The hand-offs of one prefill engine that nobody has claimed yet: counted, bounded, and freed in time.

Belongs to the event loop, except for `write`. Knows nothing about torch or requests beyond their ids.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from hashlib import sha256

from enginewire import v1 as pb
from enginewire.server.failures import KvExhausted, QueueFull
from enginewire.server.handoff.file_format import Header, KvLayout
from enginewire.server.handoff.folder import KvFolder
from enginewire.server.handoff.options import TransferOptions

LOOK_SECONDS = 0.02
"""How often to look whether hand-offs were claimed; only while there are any."""
RETRY_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class Offer:
    """One hand-off. It expires `ttl` seconds after it was written, not while it is being written."""

    request_id: str
    name: str
    num_bytes: int
    expires_at: float = float("inf")
    params: bytes = b""


class Offers:
    """What this engine has to hand over."""

    def __init__(self, folder: KvFolder, options: TransferOptions) -> None:
        self._folder = folder
        self._ttl = options.ttl
        self._max_bytes = options.max_bytes
        self._offers: set[Offer] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_pending(self) -> int:
        """Hand-offs that nobody has claimed yet, those being written included."""
        return len(self._offers)

    @property
    def num_bytes(self) -> int:
        """Bytes of keys and values in all hand-offs."""
        return sum(offer.num_bytes for offer in self._offers)

    def check_room(self, num_bytes: int) -> None:
        """Raise KvExhausted for what can never be handed over, QueueFull for what cannot be now."""
        if num_bytes > self._max_bytes:
            raise KvExhausted(f"the hand-off needs {num_bytes} bytes, allowed {self._max_bytes}")
        if self.num_bytes + num_bytes > self._max_bytes:
            raise QueueFull(
                f"{self.num_pending} hand-offs wait for a decode engine", retry_after=RETRY_SECONDS
            )

    def reserve(self, request_id: str, num_bytes: int) -> Offer:
        """Begin a hand-off; raises as `check_room` does."""
        self.check_room(num_bytes)
        offer = Offer(request_id, self._folder.new_name(), num_bytes)
        self._offers.add(offer)
        return offer

    def write(
        self, offer: Offer, layout: KvLayout, prompt: str, num_tokens: int, payload: memoryview
    ) -> None:
        """Put the keys and values into the folder. May run on any thread. Raises OSError."""
        digest = sha256(payload).hexdigest()
        expires_at = time.monotonic() + self._ttl
        header = Header(layout.digest, prompt, num_tokens, expires_at, payload.nbytes, digest)
        offer.params = self._folder.write(offer.name, header, payload)
        offer.expires_at = expires_at

    def publish(self, offer: Offer) -> pb.PrefillHandoff:
        """What the caller gets; from now on the hand-off is freed when its time is over."""
        self._look_later()
        return pb.PrefillHandoff(params=offer.params, ttl_seconds=self._ttl)

    def drop(self, offer: Offer) -> None:
        """Nobody will claim it. Idempotent."""
        self._offers.discard(offer)
        self._folder.remove(offer.name)

    def discard(self, request_id: str) -> None:
        """Drop what a request has left, if that is still here."""
        for offer in [offer for offer in self._offers if offer.params and offer.request_id == request_id]:
            self.drop(offer)

    def close(self) -> None:
        """Drop all of them."""
        if self._timer:
            self._timer.cancel()
        for offer in list(self._offers):
            self.drop(offer)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Forget what was claimed and free what is too old."""
        self._timer = None
        now = time.monotonic()
        for offer in list(self._offers):
            if offer.expires_at <= now:
                self.drop(offer)
            elif offer.params and not self._folder.is_there(offer.name):
                self._offers.discard(offer)
        if self._offers:
            self._look_later()

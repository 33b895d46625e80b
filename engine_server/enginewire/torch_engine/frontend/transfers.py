"""KV that leaves the torch engine for a folder, and KV that comes from there.

Lives on the event loop; files are read and written on threads of its own, so that neither the loop nor the
step thread waits for them. Knows nothing about torch.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor

from enginewire import v1 as pb
from enginewire.server.engines.step_streams import StepStreams
from enginewire.server.failures import DeadlineExceeded, EngineError, StepFailed
from enginewire.server.handoff.claims import Claim, Claims
from enginewire.server.handoff.file_format import KvLayout
from enginewire.server.handoff.folder import KvFolder
from enginewire.server.handoff.offers import Offers
from enginewire.server.handoff.options import TransferOptions
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.requests.sequence import HandedOver, Request
from enginewire.torch_engine.work.outbox import handed_over_output

NUM_THREADS = 2


class Transfers:
    """Both directions; an engine uses the one of its role. Raises KvFolderError for an unusable folder."""

    def __init__(self, options: TransferOptions, layout: KvLayout, streams: StepStreams) -> None:
        self._layout = layout
        self._streams = streams
        self._folder = KvFolder(options.folder)
        self._offers = Offers(self._folder, options)
        self._claims = Claims(self._folder, options, layout)
        self._pool = ThreadPoolExecutor(NUM_THREADS, "kv-transfer")
        self._sending: set[asyncio.Task[None]] = set()
        self._reading: set[Future[HandedOver]] = set()
        self._claims.sweep_regularly()

    @property
    def num_pending(self) -> int:
        """Hand-offs that nobody has claimed yet."""
        return self._offers.num_pending

    def check_room(self, num_prompt_tokens: int) -> None:
        """Raise QueueFull or KvExhausted for a prompt whose KV has no place in the folder."""
        self._offers.check_room(self._layout.payload_bytes(num_prompt_tokens - 1))

    def send(self, request: Request, payload: memoryview) -> None:
        """Write what was computed and deliver the request's one output, or its failure."""
        task = asyncio.create_task(self._send(request, payload), name="hand-off")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    def discard(self, request_id: str) -> None:
        """Free the unclaimed hand-off of a request."""
        self._offers.discard(request_id)

    def claim(self, message: pb.PreprocessedRequest, adapter: Adapter | None) -> Future[HandedOver]:
        """Take the hand-off of a valid request now; its KV follows. Raises an EngineError."""
        claim = self._claims.claim(message, adapter.digest if adapter else "")
        reading = self._pool.submit(_read, claim)
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return reading

    async def finish_reading(self) -> None:
        """Return when everything that was claimed is in memory."""
        await asyncio.gather(*map(asyncio.wrap_future, list(self._reading)), return_exceptions=True)

    async def close(self) -> None:
        """Finish what is being written, and free every hand-off. Idempotent."""
        if self._sending:
            await asyncio.wait(self._sending)
        await asyncio.to_thread(self._pool.shutdown)
        self._offers.close()
        self._claims.close()
        self._folder.close()

    async def _send(self, request: Request, payload: memoryview) -> None:
        try:
            output = handed_over_output(request, await self._offer(request, payload))
        except EngineError as failure:
            self._streams.fail(request.context, failure)
        else:
            self._streams.deliver(request.context, output)

    async def _offer(self, request: Request, payload: memoryview) -> pb.PrefillHandoff | None:
        """None when nobody wants it any more."""
        context, num_tokens = request.context, len(request.prompt_token_ids) - 1
        offer = self._offers.reserve(context.request_id, payload.nbytes)
        arguments = (offer, self._layout, request.prompt_digest, num_tokens, payload)
        try:
            await asyncio.wrap_future(self._pool.submit(self._offers.write, *arguments))
        except OSError as error:
            self._offers.drop(offer)
            raise StepFailed("the hand-off could not be written") from error
        if context.is_cancelled:
            self._offers.drop(offer)
            return None
        if context.deadline is not None and context.deadline <= time.monotonic():
            self._offers.drop(offer)
            raise DeadlineExceeded("the deadline passed before the hand-off was written")
        return self._offers.publish(offer)


def _read(claim: Claim) -> HandedOver:
    """On a thread of its own."""
    try:
        payload = claim.read()
    except OSError as error:
        claim.release()
        raise StepFailed("the hand-off could not be read") from error
    except EngineError:
        claim.release()
        raise
    return HandedOver(claim.num_tokens, payload, claim.release)

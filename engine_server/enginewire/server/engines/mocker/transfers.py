"""Hand-offs of the mocker: the files of a real engine, without any keys and values in them.

Lives on the event loop; the files are tiny. Knows nothing about steps.
"""

from __future__ import annotations

from enginewire import v1 as pb
from enginewire.server.failures import StepFailed
from enginewire.server.handoff.claims import Claims
from enginewire.server.handoff.file_format import KvLayout
from enginewire.server.handoff.folder import KvFolder
from enginewire.server.handoff.offers import Offers
from enginewire.server.handoff.options import TransferOptions


class MockerTransfers:
    """What one mocker hands over or takes. Raises KvFolderError for an unusable folder."""

    def __init__(self, options: TransferOptions, model: str) -> None:
        self._layout = KvLayout(f"mocker {model}", "none", item_bytes=0, layers=())
        self._folder = KvFolder(options.folder)
        self._offers = Offers(self._folder, options)
        self._claims = Claims(self._folder, options, self._layout)
        self._claims.sweep_regularly()

    @property
    def num_pending(self) -> int:
        """Hand-offs that nobody has claimed yet."""
        return self._offers.num_pending

    def offer(self, request_id: str, prompt: str, num_prompt_tokens: int) -> pb.PrefillHandoff:
        """A hand-off of a prompt that is computed, but for its last token. Raises StepFailed."""
        offer = self._offers.reserve(request_id, 0)
        try:
            self._offers.write(offer, self._layout, prompt, num_prompt_tokens - 1, memoryview(b""))
        except OSError as error:
            self._offers.drop(offer)
            raise StepFailed("the hand-off could not be written") from error
        return self._offers.publish(offer)

    def claim(self, message: pb.PreprocessedRequest, adapter: str) -> None:
        """Take the hand-off of a valid request, `adapter` as in `prompt_digest`. Raises HandoffInvalid."""
        claim = self._claims.claim(message, adapter)
        claim.read()
        claim.release()

    def discard(self, request_id: str) -> None:
        """Free the unclaimed hand-off of a request."""
        self._offers.discard(request_id)

    def close(self) -> None:
        """Free every hand-off."""
        self._offers.close()
        self._claims.close()
        self._folder.close()

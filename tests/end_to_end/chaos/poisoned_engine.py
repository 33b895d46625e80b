"""An engine that dies of a certain request."""

from __future__ import annotations

import asyncio
import os
import signal

from enginewire import v1 as pb
from enginewire.server.config.options import ServerOptions
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.engine import MockerEngine
from enginewire.server.engines.mocker.options import MockerOptions

POISON = b"poison"
# So much later that those who came with it are in the engine as well.
SECONDS = 0.3


class DiesOfPoison(MockerEngine):
    """The process is gone as soon as it computes such a prompt; other prompts take half a second."""

    def __init__(self, options: ServerOptions) -> None:
        super().__init__(MockerOptions(ttft_ms=500.0, itl_ms=2.0))

    def submit(self, request: pb.PreprocessedRequest, context: GenerateContext) -> None:
        """As the mocker does."""
        if list(request.token_ids[: len(POISON)]) == list(POISON):
            asyncio.get_running_loop().call_later(SECONDS, os.kill, os.getpid(), signal.SIGKILL)
        super().submit(request, context)

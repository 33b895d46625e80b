"""`enginewire-backend jsonl`: requests as JSON lines in, annotated outputs as JSON lines out.

Answers of different requests are interleaved; those of one request keep their order. Knows nothing
about how requests are carried out.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Final, TextIO

from enginewire import v1 as pb
from enginewire.backend.commands.defaults import default_request, with_defaults
from enginewire.backend.commands.line_input import Line, read_lines
from enginewire.backend.config import JsonlOptions
from enginewire.backend.frontends.json_items import (
    InvalidJson,
    JsonRequest,
    RequestId,
    invalid_to_json,
    item_to_json,
    request_from_json,
)
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.prompts import InvalidPrompt

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1


async def answer_lines(backend: TextBackend, options: JsonlOptions, *, source: int, out: TextIO) -> int:
    """Answer every line of the file descriptor `source`; 1 when any request failed, else 0.

    Raises OSError when the input cannot be read or nobody reads the output any more.
    """
    answers = LineAnswers(backend, options, out)
    free = asyncio.Semaphore(options.concurrency)
    try:
        async with asyncio.TaskGroup() as group:
            async for line in read_lines(source, options.max_line_bytes):
                if line.data is not None and not line.data.strip():
                    continue
                await free.acquire()
                group.create_task(answers.answer(line)).add_done_callback(lambda _: free.release())
    except ExceptionGroup as failures:
        # Not `except*`: what that raises is a group again before Python 3.11.4.
        broken = failures.subgroup(OSError)
        raise (broken.exceptions[0] if broken else failures) from None
    return EXIT_FAILED if answers.any_failed else EXIT_OK


class LineAnswers:
    """Answers lines one at a time or many at once."""

    def __init__(self, backend: TextBackend, options: JsonlOptions, out: TextIO) -> None:
        self.any_failed = False
        self._backend = backend
        self._timeout = options.timeout
        self._max_line_bytes = options.max_line_bytes
        self._defaults = default_request(options)
        self._out = out

    async def answer(self, line: Line) -> None:
        """Write the items of one request, or the error that the line is."""
        try:
            request = self._read(line)
        except InvalidJson as error:
            self._refuse(error.request_id, line, str(error), error.field)
            return
        request_id = line.number if request.id is None else request.id
        try:
            await self._generate(request_id, request.asked)
        except InvalidPrompt as error:
            self._refuse(request_id, line, str(error), error.field)

    def _read(self, line: Line) -> JsonRequest:
        if line.data is None:
            raise InvalidJson("", f"longer than {self._max_line_bytes} bytes")
        request = request_from_json(line.data)
        request.asked.request.CopyFrom(with_defaults(request.asked.request, self._defaults))
        return request

    async def _generate(self, request_id: RequestId, asked: pb.BackendServiceGenerateRequest) -> None:
        async with aclosing(self._backend.generate(asked, timeout=self._timeout)) as items:
            async for item in items:
                self.any_failed |= item.error is not None or (
                    item.data is not None and item.data.finish_reason == pb.FINISH_REASON_ERROR
                )
                self._write({"id": request_id, **item_to_json(item)})

    def _refuse(self, request_id: RequestId, line: Line, message: str, field: str) -> None:
        self.any_failed = True
        error = invalid_to_json(message, field)
        self._write({"id": request_id, "line": line.number, "error": error})

    def _write(self, entries: dict[str, object]) -> None:
        self._out.write(json.dumps(entries, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._out.flush()

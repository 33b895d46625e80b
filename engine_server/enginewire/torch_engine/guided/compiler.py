"""Compiles the grammars of guided requests: in another process, within limits, each once.

Its futures may be waited for from any thread; nothing here runs on the step thread or blocks the
event loop. Knows nothing about requests beyond their guide.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from enginewire.server.failures import EngineDead, InvalidRequest, QueueFull, StepFailed
from enginewire.torch_engine.guided.library import Vocabulary
from enginewire.torch_engine.guided.matcher import CompiledGuide
from enginewire.torch_engine.guided.open_library import open_library
from enginewire.torch_engine.requests.params import Guide

WORKER = "enginewire.torch_engine.guided.worker"
ROOT = Path(__file__).parents[3]
NUM_THREADS = 2
"""Grammars that compile at the same time, so that a hard one does not hold up all others."""
MAX_PENDING = 128
ANSWER_SECONDS = 30.0
"""The worker limits a compilation to far less; this also covers its start and a busy machine."""
CACHE_BYTES = 256 * 2**20
TOO_COSTLY = "takes too long or too much memory to compile"


class GrammarCompiler:
    """Compiled grammars of one library by guide, the least recently used ones forgotten."""

    def __init__(self, library: str, vocabulary: Vocabulary, cache_bytes: int = CACHE_BYTES) -> None:
        """Starts no process yet: that comes with the first grammar. Raises ImportError."""
        self._name = library
        self._vocabulary = vocabulary
        self._library = open_library(library, vocabulary)
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._grammars: OrderedDict[Guide, Future[CompiledGuide]] = OrderedDict()
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammar")
        self._worker: Worker | None = None
        self._is_closed = False

    def compile(self, guide: Guide) -> Future[CompiledGuide]:
        """Never blocks. The future raises InvalidRequest; raises QueueFull when too many wait."""
        with self._lock:
            found = self._grammars.get(guide)
            if found is not None and not (found.done() and found.exception()):
                self._grammars.move_to_end(guide)
                return found
            if sum(not future.done() for future in self._grammars.values()) >= MAX_PENDING:
                raise QueueFull("too many grammars are waiting to be compiled", retry_after=1.0)
            if self._is_closed:
                raise EngineDead("the engine is closed")
            if self._worker is None:
                self._worker = Worker(self._name, self._vocabulary)
            future = self._grammars[guide] = self._pool.submit(self._compile, guide)
        future.add_done_callback(lambda _: self._trim(guide))
        return future

    def close(self) -> None:
        """End the worker, and with it every compilation. Blocks until they have ended."""
        with self._lock:
            self._is_closed = True
            worker, self._worker = self._worker, None
        if worker:
            worker.close()
        self._pool.shutdown(cancel_futures=True)

    def _compile(self, guide: Guide) -> CompiledGuide:
        field = f"sampling_options.guided_decoding.{guide.kind}"
        compiled, refusal = self._ask(json.dumps([guide.kind, guide.text, guide.whitespace]).encode())
        if compiled is None:
            raise InvalidRequest(f"{field}: {refusal}", field=field)
        return CompiledGuide(self._library.load(compiled))

    def _ask(self, job: bytes) -> tuple[bytes | None, str]:
        """The grammar in the library's form, or None and what is wrong with the guide."""
        worker = self._worker
        for _ in range(2):  # the worker may have died since the last grammar: then a new one is asked
            if worker is None:
                raise EngineDead("the engine is closed")
            started, kind, content = _parts(worker.ask(job))
            if kind:
                return (content, "") if kind == b"+" else (None, content.decode())
            if started and self._worker is worker:
                return None, TOO_COSTLY
            worker = self._replaced(worker)
        raise StepFailed("the grammar compiler does not answer")

    def _replaced(self, worker: Worker) -> Worker | None:
        """The worker to ask after `worker` gave no answer; None when the engine is closed."""
        with self._lock:
            if self._worker is worker:
                worker.close()
                self._worker = Worker(self._name, self._vocabulary)
            return self._worker

    def _trim(self, newest: Guide) -> None:
        """Forget refused grammars, and the least recently used ones beyond the cache's size."""
        with self._lock:
            done = [(guide, future) for guide, future in self._grammars.items() if future.done()]
            for guide, future in done:
                if future.cancelled() or future.exception():
                    del self._grammars[guide]
            sizes = {guide: future.result().num_bytes for guide, future in done if guide in self._grammars}
            excess = sum(sizes.values()) - self._cache_bytes
            for guide, size in sizes.items():
                if excess <= 0 or guide == newest:
                    break
                del self._grammars[guide]
                excess -= size


class Worker:
    """The process that runs `worker`."""

    def __init__(self, library: str, vocabulary: Vocabulary) -> None:
        self._socket, far = socket.socketpair()
        # Nothing may come from a grammar into a log; -P keeps the current folder off its path.
        command = [sys.executable, "-P", "-m", WORKER, library, str(far.fileno())]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(  # noqa: S603  # a command of ours alone
            command,
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            pass_fds=[far.fileno()],
            start_new_session=True,  # an interrupt of the engine's terminal is the engine's to handle
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        far.close()
        content = vocabulary.to_bytes()
        self._lock = threading.Lock()
        self._unsent = len(content).to_bytes(8, "big") + content

    def ask(self, job: bytes) -> bytes:
        """What the worker answers until it ends the connection."""
        near, far = socket.socketpair()
        with near:
            near.settimeout(ANSWER_SECONDS)
            try:
                with far:
                    self._send(far)
                near.sendall(job)
                near.shutdown(socket.SHUT_WR)
                with near.makefile("rb") as stream:
                    return stream.read()
            except OSError:  # a fork that was killed, a worker that died, or one that hangs
                return b""

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _send(self, job: socket.socket) -> None:
        with self._lock:
            # Later than the start, which must not block: the vocabulary is larger than a pipe.
            if self._unsent:
                self._socket.sendall(self._unsent)
                self._unsent = b""
            socket.send_fds(self._socket, [b"\0"], [job.fileno()])


def _parts(reply: bytes) -> tuple[bytes, bytes, bytes]:
    """That the compilation began, whether it succeeded, and the rest; empty as far as it was cut off."""
    return reply[:1], reply[1:2], reply[2:]

"""The process that compiles grammars: it forks once per grammar, so that a compilation which
crashes, hangs or eats memory takes nothing with it.

Run as a module with the name of a library and the number of a socket. The first message on it is the
vocabulary; after that every message is one socket per grammar, over which the guide comes and the
compiled grammar goes back. Imports a grammar library and next to nothing of the engine.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress

from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.torch_engine.guided.library import Library, Vocabulary
from enginewire.torch_engine.guided.open_library import open_library
from enginewire.torch_engine.guided.size import check_size
from enginewire.torch_engine.guided.speed import check_speed

CPU_SECONDS = 0.7
"""For one grammar; then its fork is killed."""
WALL_SECONDS = 4.0
"""The same for a fork that sleeps, or that a busy machine does not let run."""
MEMORY_BYTES = 2**30
"""What a compilation may allocate."""
MAX_COMPILED_BYTES = 16 * 2**20
STARTED = b"."
"""Comes before every answer: nothing after it means that the fork was killed for its limits."""
COMPILED = b"+"
REFUSED = b"-"


def main(library_name: str, descriptor: int) -> None:
    """Serve until the other end is closed."""
    # Forks are not waited for: their end is the end of their socket.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as engine:
        library = open_library(library_name, Vocabulary.from_bytes(_read_vocabulary(engine)))
        while True:
            message, jobs, _, _ = socket.recv_fds(engine, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                _serve(library, socket.socket(fileno=jobs[0]))
                os._exit(0)
            os.close(jobs[0])


def _read_vocabulary(engine: socket.socket) -> bytes:
    # Not through a buffer: it would swallow the jobs behind the vocabulary.
    length = int.from_bytes(engine.recv(8, socket.MSG_WAITALL), "big")
    return engine.recv(length, socket.MSG_WAITALL)


def _serve(library: Library, job: socket.socket) -> None:
    job.sendall(STARTED)
    _limit()
    with job.makefile("rb") as stream:
        kind, text, whitespace = json.loads(stream.read())
    content = answer(library, kind, text, whitespace)
    # The rest waits for the engine, and is over when that closes its end.
    signal.setitimer(signal.ITIMER_REAL, 0)
    job.sendall(content)


def _limit() -> None:
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_SECONDS)
    with suppress(OSError, ValueError):  # not every system says how much it uses, or sets the limit
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))


def answer(library: Library, kind: str, text: str, whitespace: str | None = None) -> bytes:
    """`COMPILED` and the grammar in the library's form, or `REFUSED` and why."""
    try:
        check_size(kind, text)
        compiled = library.compile(kind, text, whitespace)
        if len(compiled) > MAX_COMPILED_BYTES:
            raise InvalidGuide("too large")
        check_speed(library, compiled)
    except InvalidGuide as error:
        return REFUSED + str(error)[:200].encode(errors="replace")
    return COMPILED + compiled


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

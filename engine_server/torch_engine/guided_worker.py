"""The process that compiles grammars: it forks once per grammar, so that a compilation which
crashes, hangs or eats memory takes nothing with it.

Run as a script with the number of a socket. The first message on it is the vocabulary; after that
every message is one socket per grammar, over which the guide comes and the compiled grammar goes
back. Imports xgrammar and nothing of the engine.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

import xgrammar

CPU_SECONDS = 0.7
"""For one grammar; then its fork is killed."""
WALL_SECONDS = 4.0
"""The same for a fork that sleeps, or that a busy machine does not let run."""
MEMORY_BYTES = 2**30
"""What a compilation may allocate."""
MAX_COMPILED_BYTES = 16 * 2**20
MAX_WHITESPACE = 20
"""Characters in a row between JSON tokens: without a bound weak models never leave them."""
STARTED = b"."
"""Comes before every answer: nothing after it means that the fork was killed for its limits."""
COMPILED = b"+"
REFUSED = b"-"

Compile = Callable[[str], xgrammar.CompiledGrammar]


def main(descriptor: int) -> None:
    """Serve until the other end is closed."""
    # Forks are not waited for: their end is the end of their socket.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as engine:
        vocabulary = xgrammar.TokenizerInfo.deserialize_json(_read_vocabulary(engine))
        compiler = xgrammar.GrammarCompiler(vocabulary, max_threads=1, cache_enabled=False)
        while True:
            message, jobs, _, _ = socket.recv_fds(engine, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                _serve(compiler, socket.socket(fileno=jobs[0]))
                os._exit(0)
            os.close(jobs[0])


def _read_vocabulary(engine: socket.socket) -> str:
    # Not through a buffer: it would swallow the jobs behind the vocabulary.
    length = int.from_bytes(engine.recv(8, socket.MSG_WAITALL), "big")
    return engine.recv(length, socket.MSG_WAITALL).decode()


def _serve(compiler: xgrammar.GrammarCompiler, job: socket.socket) -> None:
    job.sendall(STARTED)
    _limit()
    with job.makefile("rb") as stream:
        kind, text = json.loads(stream.read())
    content = answer(compiler, kind, text)
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


def answer(compiler: xgrammar.GrammarCompiler, kind: str, text: str) -> bytes:
    """`COMPILED` and the serialized grammar, or `REFUSED` and why."""
    try:
        grammar = _compilers(compiler)[kind](text)
        if not _has_a_token(grammar):
            return REFUSED + b"no output can match"
        compiled = grammar.serialize_json().encode()
    except (RuntimeError, ValueError) as error:
        return REFUSED + _first_line(error).encode(errors="replace")
    return COMPILED + compiled if len(compiled) <= MAX_COMPILED_BYTES else REFUSED + b"too large"


def _compilers(compiler: xgrammar.GrammarCompiler) -> dict[str, Compile]:

    def json_schema(text: str) -> xgrammar.CompiledGrammar:
        return compiler.compile_json_schema(text, max_whitespace_cnt=MAX_WHITESPACE)

    return {
        "json_schema": json_schema,
        "json_object": lambda _: json_schema('{"type": "object"}'),
        "regex": compiler.compile_regex,
        "choice": lambda text: compiler.compile_structural_tag(_choice_tag(json.loads(text))),
        "ebnf_grammar": compiler.compile_grammar,
        "structural_tag": compiler.compile_structural_tag,
    }


def _choice_tag(choices: list[str]) -> str:
    constants = [{"type": "const_string", "value": choice} for choice in choices]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": constants}})


def _has_a_token(grammar: xgrammar.CompiledGrammar) -> bool:
    mask = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
    xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(mask)
    return bool(mask.any())


def _first_line(error: Exception) -> str:
    """Without the time and the place in the library's source that its messages begin with."""
    text = str(error).strip().split("\n")[0].replace("std::bad_alloc", "too large")
    return text.rsplit(": ", 1)[-1][:200] if text.startswith("[") else text[:200]


if __name__ == "__main__":
    main(int(sys.argv[1]))

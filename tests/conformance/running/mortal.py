"""A server that ends while it generates: `python -m tests.conformance.running.mortal HOW TARGET`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import AsyncIterator

from enginewire import v1 as pb
from enginewire.conformance.reference.__main__ import run
from enginewire.conformance.reference.generation.job import Job
from enginewire.conformance.reference.server import Reference

EXIT_CODE = 7


class Mortal(Reference):
    """Ends at the request of LIM-01: by itself, or by a signal."""

    how = "exit"

    async def responses(self, job: Job) -> AsyncIterator[pb.GenerateResponse]:
        if "LIM-01" in job.request_id:
            print("out of memory", file=sys.stderr, flush=True)
            if self.how == "signal":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(EXIT_CODE)
        async for response in super().responses(job):
            yield response


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("exit", "signal"))
    return run(parser, _made)


def _made(options: argparse.Namespace) -> Mortal:
    server = Mortal()
    server.how = options.how
    return server


if __name__ == "__main__":
    raise SystemExit(main())

"""The reference as a program: for checks that start and signal processes. `mutants` makes one of theirs."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc

from enginewire.conformance.reference.server import Reference
from enginewire.conformance.reference.signals import AddressError

LAST_WORDS_SECONDS = 5.0
"""For what is generated and not yet sent when a drain ends; none of it is waited for in vain."""


async def serve(server: Reference, target: str) -> int:
    """Serve until a signal; returns the exit code."""
    server.obey_signals()
    try:
        server.check_address(target)
    except AddressError as mistake:
        return server.cannot_listen(mistake)
    listening = await server.serve(target)
    code = await server.until_signalled()
    await listening.stop(LAST_WORDS_SECONDS)
    await server.shut_down(listening)
    return code


def main() -> int:
    """Parse the command line and serve."""
    return run(
        argparse.ArgumentParser(prog="python -m enginewire.conformance.reference"), lambda _: Reference()
    )


def run(parser: argparse.ArgumentParser, make: Callable[[argparse.Namespace], Reference]) -> int:
    """Serve what `make` gives for the options of `parser` and those of every server here."""
    parser.add_argument("target", help="host:port or unix:/path")
    parser.add_argument("--load-seconds", type=float, default=0.2, metavar="S", help="to pretend to load")
    parser.add_argument("--tls-cert", type=Path, metavar="PEM", help="speak TLS with this certificate")
    parser.add_argument("--tls-key", type=Path, metavar="PEM", help="its key")
    options = parser.parse_args()
    if bool(options.tls_cert) != bool(options.tls_key):
        parser.error("--tls-cert and --tls-key belong together")
    return asyncio.run(_serve(make(options), options))


async def _serve(server: Reference, options: argparse.Namespace) -> int:
    server.settings = replace(server.settings, start_seconds=options.load_seconds)
    if options.tls_cert:
        pair = (options.tls_key.read_bytes(), options.tls_cert.read_bytes())
        server.credentials = grpc.ssl_server_credentials([pair])
    return await serve(server, options.target)


if __name__ == "__main__":
    raise SystemExit(main())

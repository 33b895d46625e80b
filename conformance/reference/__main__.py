"""The reference, or one of its mutants, as a program: for checks that start and signal processes."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path

import grpc

from conformance.reference.server import Reference
from conformance.reference.signals import AddressError

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
    parser = argparse.ArgumentParser(prog="python -m conformance.reference")
    parser.add_argument("target", help="host:port or unix:/path")
    parser.add_argument("--mutant", default="", help="the broken server to be instead")
    parser.add_argument("--load-seconds", type=float, default=0.2, metavar="S", help="to pretend to load")
    parser.add_argument("--tls-cert", type=Path, metavar="PEM", help="speak TLS with this certificate")
    parser.add_argument("--tls-key", type=Path, metavar="PEM", help="its key")
    options = parser.parse_args()
    if bool(options.tls_cert) != bool(options.tls_key):
        parser.error("--tls-cert and --tls-key belong together")
    return asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> int:
    server = _server(options.mutant)
    server.settings = replace(server.settings, start_seconds=options.load_seconds)
    if options.tls_cert:
        pair = (options.tls_key.read_bytes(), options.tls_cert.read_bytes())
        server.credentials = grpc.ssl_server_credentials([pair])
    return await serve(server, options.target)


def _server(mutant: str) -> Reference:
    if not mutant:
        return Reference()
    from conformance.mutants import mutants

    return next(known for known in mutants() if known.name == mutant).server()


if __name__ == "__main__":
    raise SystemExit(main())

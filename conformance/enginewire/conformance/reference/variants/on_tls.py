"""The reference on TLS: a front that ends the encryption, which can be made wrong where gRPC's own cannot."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import replace
from pathlib import Path

import grpc

from enginewire.conformance.reference.server import Reference
from enginewire.conformance.wire.connection import Connection, Tls
from enginewire.conformance.wire.handshake import CERTIFICATES
from enginewire.conformance.wire.tasks import stop

AUTHORITY = CERTIFICATES / "authority.pem"
EXPIRED = CERTIFICATES / "expired.pem"
CHUNK = 64 * 1024


class OnTls(Reference):
    """A reference that asks for TLS and a certificate, beside its socket. Mutants are subclasses of it."""

    trusted: tuple[Path, ...] = (AUTHORITY,)
    gates = frozenset({"tls", "client_certificates"})

    async def serve(self, target: str) -> grpc.aio.Server:
        """On the socket `target` in plain text, and on a free port of loopback on TLS."""
        server = await super().serve(target)
        self._front = socket.create_server(("127.0.0.1", 0))
        self._front.setblocking(False)
        self._connections: list[socket.socket] = []
        self._waiting: asyncio.Queue[socket.socket] = asyncio.Queue()
        self._pipes: set[asyncio.Task[None]] = set()
        self._pipes.add(asyncio.ensure_future(self._accept(self.context(), target.removeprefix("unix:"))))
        asyncio.get_running_loop().add_reader(self._front, self._arrived)
        return server

    async def shut_down(self, server: grpc.aio.Server) -> None:
        """The front first."""
        asyncio.get_running_loop().remove_reader(self._front)
        self._front.close()
        await stop(self._pipes)
        for connection in self._connections:
            connection.close()
        await super().shut_down(server)

    def connection(self, target: str) -> Connection:
        """By the front, with the right certificate."""
        tls = Tls(ca=AUTHORITY, certificate=CERTIFICATES / "caller.pem", name="localhost")
        return replace(super().connection(target), target=self.address, tls=tls)

    @property
    def address(self) -> str:
        """Where it speaks TLS."""
        return f"127.0.0.1:{self._front.getsockname()[1]}"

    def context(self) -> ssl.SSLContext:
        """How it speaks TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(CERTIFICATES / "server.pem")
        context.set_alpn_protocols(["h2"])
        context.verify_mode = ssl.CERT_REQUIRED
        for path in self.trusted:
            context.load_verify_locations(path)
        return context

    def _arrived(self) -> None:
        """Take a connection and note it, in one step that nothing can cancel: it is closed in the end."""
        with contextlib.suppress(OSError):
            connection, _ = self._front.accept()
            connection.setblocking(False)
            self._connections.append(connection)
            self._waiting.put_nowait(connection)

    async def _accept(self, context: ssl.SSLContext, path: str) -> None:
        while True:
            await self.accepted(await self._waiting.get(), context, path)

    async def accepted(self, connection: socket.socket, context: ssl.SSLContext, path: str) -> None:
        """Look after one connection, while others come."""
        self._pipes.add(asyncio.ensure_future(self.connected(connection, context, path)))

    async def connected(self, connection: socket.socket, context: ssl.SSLContext | None, path: str) -> None:
        """Shake hands, then carry bytes both ways until one side ends."""
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        try:
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader), connection, ssl=context
            )
        except OSError:
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        back_reader, back_writer = await asyncio.open_unix_connection(path)
        try:
            await asyncio.gather(_carry(reader, back_writer), _carry(back_reader, writer))
        finally:
            writer.transport.abort()
            back_writer.transport.abort()


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            sink.write(data)
            await sink.drain()
    sink.close()

"""How to reach the target: addresses, TLS, metadata. Opens channels; knows no RPC."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import grpc

from enginewire.conformance.wire.exchange import Metadata

AUTHORIZATION: Final = "authorization"

NARROW: Final = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
"""A window of a kilobyte that never grows: whoever reads nothing soon gets nothing."""

ANY_METADATA: Final = (("grpc.max_metadata_size", 2**20), ("grpc.absolute_max_metadata_size", 2**20))
"""Headers and trailers of a server that sends too much are seen, not replaced by the library's own status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files. Without `ca` the machine's own authorities count; `name` overrides the host's name.

    The file of the certificate may hold its key as well.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What a secure channel needs."""
        paths = (self.ca, self.key or self.certificate, self.certificate)
        files = [path.read_bytes() if path else None for path in paths]
        return grpc.ssl_channel_credentials(*files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A target as gRPC names it: `host:port`, `unix:/path` or `dns:///name:port`."""

    target: str
    tls: Tls | None = None
    metadata: Metadata = ()

    @property
    def is_tcp(self) -> bool:
        """False for Unix sockets."""
        return not self.target.startswith(("unix:", "unix-abstract:"))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of a target over TCP."""
        host, _, port = self.target.removeprefix("dns:///").rpartition(":")
        return host.strip("[]"), int(port)

    def at(self, target: str) -> Connection:
        """The same credentials at another address, such as that of a proxy in front of the target."""
        return replace(self, target=target)

    def with_keys(self, *keys: str) -> Connection:
        """The same target, to whom these are brought in place of the user's own."""
        others = tuple(pair for pair in self.metadata if pair[0] != AUTHORIZATION)
        return replace(self, metadata=(*others, *((AUTHORIZATION, f"Bearer {key}") for key in keys)))

    def showing(self, certificate: Path | None) -> Connection:
        """The same target, to which another certificate is shown, or none. Its file holds its key."""
        return replace(self, tls=replace(self.tls or Tls(), certificate=certificate, key=None))

    def channel(self, *options: tuple[str, int | str]) -> grpc.aio.Channel:
        """A new channel with a connection of its own, and gRPC's default limits."""
        all_options = [("grpc.use_local_subchannel_pool", 1), *options]
        if not self.is_tcp:
            # gRPC would name the socket's path, which servers on Rust's h2 refuse.
            all_options.append(("grpc.default_authority", "localhost"))
        if not self.tls:
            return grpc.aio.insecure_channel(self.target, options=all_options)
        if self.tls.name:
            all_options.append(("grpc.ssl_target_name_override", self.tls.name))
        return grpc.aio.secure_channel(self.target, self.tls.credentials(), options=all_options)

    async def accepts(self) -> bool:
        """True when something listens at the target; says nothing about what."""
        try:
            if self.is_tcp:
                _, writer = await asyncio.open_connection(*self.address)
            else:
                _, writer = await asyncio.open_unix_connection(self.target.removeprefix("unix:"))
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return True

"""The SMG worker as a server: its port, its beginning and its end.

Knows nothing about the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from enginewire.access.access import OPEN, Access
from enginewire.access.audit import AuditLog
from enginewire.access.guard import guards
from enginewire.backend.config import ServeOptions
from enginewire.backend.frontends.calls import refuse_caller
from enginewire.backend.frontends.grpc_service import GrpcFace
from enginewire.backend.frontends.health import BackendHealth
from enginewire.backend.frontends.smg.servicer import SERVICE, SmgServicer
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.grpc_server import new_server, started
from enginewire.listening.binding import bind_tcp


@asynccontextmanager
async def smg_face(
    backend: TextBackend, options: ServeOptions, access: Access = OPEN, audit: AuditLog | None = None
) -> AsyncIterator[GrpcFace]:
    """Serve inside the context; the address is the URL that SMG wants. Raises AddressError."""
    assert options.smg_port is not None
    server = new_server(
        options.max_message_bytes,
        options.max_concurrent_streams,
        guards(access, refuse_caller, audit, {f"/{SERVICE}/Generate"}),
    )
    servicer = SmgServicer(backend, options.timeout, options.tokenizer, options.slow_consumer_timeout)
    server.add_generic_rpc_handlers((servicer.handlers(),))
    health = BackendHealth(backend.backend.engines, SERVICE)
    health.add_to(server)
    target = bind_tcp(server, options.smg_host, options.smg_port, access.tls)
    async with started(server):
        yield GrpcFace(server, health, f"{'grpcs' if access.tls else 'grpc'}://{target}")

"""The fixtures of the faces."""

from tests.backend.frontends.conftest import (
    engine_server,
    servers_end_soon,
    start_backend,
    text_backend,
)

__all__ = ["engine_server", "servers_end_soon", "start_backend", "text_backend"]

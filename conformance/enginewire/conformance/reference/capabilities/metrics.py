"""The reference's metrics: its load as Prometheus text, over the smallest HTTP server there is."""

from __future__ import annotations

import asyncio
from typing import Final

from enginewire.conformance.reference.service import Service

HOST: Final = "127.0.0.1"
GAUGE: Final = "gauge"
COUNTER: Final = "counter"


class Metrics(Service):
    """Exports what it counts at `metrics_url`, once it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics_url = ""
        self._exporter: asyncio.Server | None = None

    async def open_parts(self) -> None:
        """Listen."""
        await super().open_parts()
        self._exporter = await asyncio.start_server(self._export, HOST, 0)
        self.metrics_url = f"http://{HOST}:{self._exporter.sockets[0].getsockname()[1]}/metrics"

    async def close_parts(self) -> None:
        """Listen no more."""
        if self._exporter:
            self._exporter.close()
        await super().close_parts()

    def metrics(self) -> dict[tuple[str, str], float]:
        """Kind and name to value."""
        load = self.load()
        return {
            (GAUGE, "engine_requests_running"): load.running,
            (GAUGE, "engine_requests_waiting"): load.waiting,
            (COUNTER, "engine_generation_tokens_total"): load.tokens_generated,
            (COUNTER, "engine_requests_finished_total"): load.requests_finished,
        }

    async def _export(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines = [f"# TYPE {name} {kind}\n{name} {value}\n" for (kind, name), value in self.metrics().items()]
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n\r\n"
        )
        writer.write("".join(lines).encode())
        await writer.drain()
        writer.close()

"""The `enginewire-server` command: options, logs, then the server.

Exit codes: 0 drained and cleaned up, 1 the engine failed to start, 2 bad options, 70 the engine died, got
stuck or could not be cleaned up, 98 the address is in use, 128 + signal when a second signal ended the drain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from enginewire.program import event_loop, program
from enginewire.server.config.given import load_options

EXIT_USAGE = 2
LAST_SECONDS = 1.0


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar; returns the exit code."""
    options = load_options(argv)
    if options.metrics_port is not None and find_spec("prometheus_client") is None:
        print("--metrics-port needs prometheus_client: pip install 'enginewire[metrics]'", file=sys.stderr)
        return EXIT_USAGE
    if options.kv_events.publishes and find_spec("zmq") is None:
        print("--kv-events-config needs ZeroMQ: pip install 'enginewire[zmq]'", file=sys.stderr)
        return EXIT_USAGE
    # Past this line the command is really going to serve: now the heavy imports may come.
    from enginewire.program.logs import configure_logs
    from enginewire.server.load_engine import EngineUnavailable, make_engine
    from enginewire.server.server import EngineServer

    configure_logs(options.log_level, options.log_format)
    try:
        engine = make_engine(options)
    except EngineUnavailable as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE

    async def serve() -> int:
        exit_code = await EngineServer(engine, options).run()
        await _leave_what_stays(exit_code)
        return exit_code

    return event_loop.run(serve())


async def _leave_what_stays(exit_code: int) -> None:
    """End the process here when something would hold up its end.

    Such as a thread that still loads a model, or a call of an engine that takes no notice of being cancelled.
    """
    await event_loop.last_calls()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    _, left = await asyncio.wait(others, timeout=LAST_SECONDS) if others else (others, set())
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    if left or not all(thread.daemon for thread in threads):
        logging.shutdown()
        os._exit(exit_code)


if __name__ == "__main__":
    sys.exit(main())

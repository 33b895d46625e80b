"""The `enginewire-server` command: options, logs, then the server.

Exit codes: 0 drained and cleaned up, 1 the engine failed to start, 2 bad options, 70 the engine died or
got stuck, 98 the address is in use, 128 + signal when a second signal ended the drain.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec

from engine_server.config import load_options
from enginewire import event_loop
from enginewire.program import program

EXIT_USAGE = 2


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar; returns the exit code."""
    options = load_options(argv)
    if options.metrics_port is not None and find_spec("prometheus_client") is None:
        print("--metrics-port needs prometheus_client: pip install 'enginewire[metrics]'", file=sys.stderr)
        return EXIT_USAGE
    # Past this line the command is really going to serve: now the heavy imports may come.
    from engine_server.engines import EngineUnavailable, make_engine
    from engine_server.logs import configure_logs
    from engine_server.server import EngineServer

    configure_logs(options.log_level, options.log_format)
    try:
        engine = make_engine(options)
    except EngineUnavailable as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE

    async def serve() -> int:
        exit_code = await EngineServer(engine, options).run()
        _leave_busy_threads(exit_code)
        return exit_code

    return event_loop.run(serve())


def _leave_busy_threads(exit_code: int) -> None:
    """End the process here when a thread, such as one that still loads a model, would hold up its end."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        logging.shutdown()
        os._exit(exit_code)


if __name__ == "__main__":
    sys.exit(main())

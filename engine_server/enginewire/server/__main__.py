"""The `enginewire-server` command: options, logs, then the server.

Exit codes: 0 drained and cleaned up, 1 the engine failed to start, 2 bad options, 70 the engine died, got
stuck or could not be cleaned up, 98 the address is in use, 128 + signal when a second signal ended the drain.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

# The options too are imported when they are needed: until `main` is called, Ctrl-C is a traceback.
from enginewire.program import program

EXIT_USAGE = 2


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar; returns the exit code."""
    from enginewire.server.config.given import load_options

    options = load_options(argv)
    if options.metrics_port is not None and find_spec("prometheus_client") is None:
        print("--metrics-port needs prometheus_client: pip install 'enginewire[metrics]'", file=sys.stderr)
        return EXIT_USAGE
    if options.kv_events.publishes and find_spec("zmq") is None:
        print("--kv-events-config needs ZeroMQ: pip install 'enginewire[zmq]'", file=sys.stderr)
        return EXIT_USAGE
    # Past this line the command is really going to serve: now the heavy imports may come.
    from enginewire.program import event_loop
    from enginewire.program.logs import configure_logs
    from enginewire.server.load_engine import EngineUnavailable, make_engine
    from enginewire.server.process.leftovers import leave_what_stays
    from enginewire.server.server import EngineServer

    configure_logs(options.log_level, options.log_format)
    try:
        engine = make_engine(options)
    except EngineUnavailable as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE

    async def serve() -> int:
        exit_code = await EngineServer(engine, options).run()
        await leave_what_stays(exit_code)
        return exit_code

    return event_loop.run(serve())


if __name__ == "__main__":
    sys.exit(main())

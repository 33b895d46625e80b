"""The `enginewire-server` command: options, logs, then the server.

Exit codes: 0 drained and cleaned up, 1 the engine failed to start, 2 bad options, 70 the engine died or
got stuck, 98 the address is in use, 128 + signal when a second signal ended the drain.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from engine_server.config import load_options

EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sidecar; returns the exit code."""
    options = load_options(argv)
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
        return await EngineServer(engine, options).run()

    return asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())

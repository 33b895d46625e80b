"""`enginewire dynamo`: an engine as a worker of Dynamo. Holds the command line.

Exit codes: 0 drained, 1 the engine or Dynamo failed, 2 bad options, 128 + signal when a second one ended it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Final

from enginewire.backend.frontends.dynamo.options import DynamoOptions
from enginewire.options import load
from enginewire.program import program

PROG: Final = "enginewire dynamo"
EXIT_FAILED: Final = 1
# What the end may take beside the requests.
MARGIN_SECONDS: Final = 10.0


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Be a worker until a signal; returns the exit code."""
    description = "Make an engine a worker of Dynamo: its frontend finds the worker and makes the text."
    options = load(DynamoOptions, argv, prog=PROG, description=description).options
    # Past this line it is really going to run: now the heavy imports may come, and say what is missing.
    from enginewire.backend.commands.life import describe, run_until_signal
    from enginewire.backend.engines.connection.client import EngineClient
    from enginewire.backend.engines.failure import RequestFailed
    from enginewire.backend.engines.stream import Patience
    from enginewire.backend.frontends.dynamo.runtime import serve
    from enginewire.backend.processes.stop_signals import StopSignals
    from enginewire.backend.prompting.tokenizer import InvalidTokenizer
    from enginewire.calling.trust import trust_of

    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr)
    signals = StopSignals(options.grace_period + options.shutdown_timeout + MARGIN_SECONDS)

    async def work() -> int:
        patience = Patience(options.first_token_timeout, options.token_timeout)
        async with EngineClient(options.target, patience=patience, trust=trust_of(options)) as client:
            return await serve(client, options, signals)

    try:
        return run_until_signal(work(), signals)
    except RequestFailed as error:
        message = describe(error.failure)
    except InvalidTokenizer as error:
        message = str(error)
    print(f"{PROG}: {message}", file=sys.stderr)
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())

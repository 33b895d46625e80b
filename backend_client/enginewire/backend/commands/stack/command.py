"""The `enginewire serve` command: engine, gRPC, HTTP and the page in one go.

The engine runs in a process of its own: this is a short way to say `enginewire backend serve --launch`, whose
exit codes it has.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from enginewire.backend.config import DEFAULT_HTTP_PORT, ServeOptions, choose_address
from enginewire.options import Loaded, OptionError, load
from enginewire.program import program

PROG: Final = "enginewire serve"
DESCRIPTION: Final = (
    "Start an engine and serve it: `enginewire serve [MODEL] [options]`. These are the options of the"
    " backend. MODEL, which is builtin:demo when not given, and every other option go to the engine"
    f" (`enginewire engine --help`). HTTP listens on port {DEFAULT_HTTP_PORT} unless --http-port is given."
)
# The weights of a large model take longer than an engine that is already there.
LOAD_SECONDS: Final = 600.0


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    options = load(
        ServeOptions, argv, prog=PROG, description=DESCRIPTION, resolve=choose, keeps_rest=True
    ).options
    # Past this line it is really going to serve: now the heavy imports may come, and say what is missing.
    import enginewire.backend.frontends.http_api.server  # noqa: F401
    from enginewire.backend.commands.life import run_command
    from enginewire.backend.commands.serve import end_of, serve
    from enginewire.backend.commands.stack.panel import Served, print_panel
    from enginewire.backend.frontends.http_api.openai.generate_route import engine_names
    from enginewire.backend.frontends.text_backend import TextBackend
    from enginewire.backend.processes.engine_output import EngineOutput

    if sys.stdout.isatty():
        import rich.panel  # noqa: F401
    signals, output = end_of(options), EngineOutput(sys.stderr, options.launch_command)

    async def work(backend: TextBackend) -> int:
        info = await backend.backend.client.info()
        model, *_ = options.served_model_name or engine_names(info.config)
        return await serve(
            backend,
            options,
            signals,
            lambda addresses: print_panel(Served(addresses, info, model, output.device), sys.stdout),
        )

    return run_command(options, work, signals, prog=PROG, output=output)


def choose(loaded: Loaded[ServeOptions]) -> ServeOptions:
    """HTTP is always served, and there is an engine. Raises OptionError."""
    options, given = choose_address(loaded), loaded.sources
    if options.http_port is None:
        options = replace(options, http_port=DEFAULT_HTTP_PORT)
    if "launch" in given:
        raise OptionError(f"{given['launch']}: give the engine's MODEL and options to {PROG} itself")
    if "target" in given:
        if loaded.rest:
            raise OptionError(f"{loaded.rest[0]}: no engine is started beside {given['target']}")
        return options
    if "connect_timeout" not in given:
        options = replace(options, connect_timeout=LOAD_SECONDS)
    # What both have options of one name for.
    both = [f"--otlp-traces-endpoint={endpoint}"] if (endpoint := options.otlp_traces_endpoint) else []
    both += [f"--log-format={options.log_format}"] if "log_format" in given else []
    both += ["--disable-log-stats"] if options.disable_log_stats else []
    launch = shlex.join([*(loaded.rest or ("builtin:demo",)), *both])
    # The engine's own line says how busy it is.
    return replace(options, launch=launch, disable_log_stats=True)


if __name__ == "__main__":
    sys.exit(main())

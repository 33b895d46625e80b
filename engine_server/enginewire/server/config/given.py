"""The options of this process, and what follows from which of them were given, whatever their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from enginewire.addresses import wants_tcp
from enginewire.options import Loaded, OptionError, load
from enginewire.server.config.options import DEFAULT_PORT, ServerOptions
from enginewire.server.config.our_engines import OurEngine
from enginewire.server.config.rules import is_url
from enginewire.server.config.vllm_rules import check_for_vllm

BEHIND_UPSTREAM: Final = (OurEngine.UPSTREAM, OurEngine.OPENAI)


def load_options(argv: Sequence[str] | None = None) -> ServerOptions:
    """The options of this process; exits with 2 and a message when they are wrong."""
    description = "Serve a model on the engine contract, enginewire.v1."
    return load(
        ServerOptions, argv, prog="enginewire-server", description=description, resolve=complete
    ).options


def complete(loaded: Loaded[ServerOptions]) -> ServerOptions:
    """A host alone means TCP at the default port, `upstream` alone its engine. Raises OptionError.

    There is one address, and one engine, which takes what is said.
    """
    options = loaded.options
    if options.upstream and "engine" not in loaded.sources:
        behind = OurEngine.OPENAI if is_url(options.upstream) else OurEngine.UPSTREAM
        options = replace(options, engine=behind.value)
    if options.upstream and options.engine not in BEHIND_UPSTREAM:
        raise OptionError(f"--upstream and --engine {options.engine} exclude each other: there is one engine")
    if options.engine == OurEngine.VLLM:
        check_for_vllm(loaded.sources)
    if options.engine == OurEngine.OPENAI and "model" not in loaded.sources:
        options = replace(options, model="")
    if wants_tcp(loaded.sources) and options.port is None:
        return replace(options, port=DEFAULT_PORT)
    return options

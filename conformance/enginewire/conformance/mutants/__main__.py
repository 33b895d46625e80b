"""A mutant as a program: `python -m enginewire.conformance.mutants NAME TARGET`, as that of the reference."""

from __future__ import annotations

import argparse

from enginewire.conformance.mutants import mutants
from enginewire.conformance.reference.__main__ import run
from enginewire.conformance.reference.server import Reference


def main() -> int:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m enginewire.conformance.mutants")
    servers = {mutant.name: mutant.server for mutant in mutants() if issubclass(mutant.server, Reference)}
    parser.add_argument("name", choices=servers, metavar="NAME", help="what is wrong with the server")
    return run(parser, lambda options: servers[options.name]())


if __name__ == "__main__":
    raise SystemExit(main())

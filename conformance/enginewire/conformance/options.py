"""The command line of the kit. Parses; runs nothing."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from enginewire.conformance.conclusion import conclusion
from enginewire.conformance.requirements.levels import NO_LEVEL, Level
from enginewire.conformance.running.gates import OUTSIDE
from enginewire.conformance.running.registry import Phase
from enginewire.conformance.running.selection import Selection
from enginewire.conformance.session.run_options import PAIR, READY_SECONDS, ROLES, add_options, adopt, drawn
from enginewire.conformance.wire.connection import Connection, Tls
from enginewire.conformance.wire.exchange import Metadata
from enginewire.v1.revision import CONTRACT_REVISION
from enginewire.version import __version__

API_KEY: Final = "ENGINEWIRE_CONFORMANCE_API_KEY"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; a mistake ends the program with 2."""
    parser = argparse.ArgumentParser(
        prog="enginewire-conformance",
        description="Judge a server of enginewire.v1, in any language.",
        epilog="Exit codes: 0 conformant, 1 a requirement is broken, 2 usage, 3 the target cannot be reached "
        "or died, 4 a fault of the kit, 5 nothing ran, 130 and 143 interrupted by SIGINT and SIGTERM.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    _add_target(parser)
    add_options(parser)
    _add_selection(parser)
    _add_output(parser)
    conclusion.add_options(parser)
    options = parser.parse_args(argv)
    conclusion.check_options(parser, options)
    adopt(parser, options)
    if options.launch and options.target:
        parser.error("--target and --launch exclude each other")
    if not (options.launch or options.target or options.list or options.explain or options.proto_path):
        parser.error("one of --target, --launch, --prefill with --decode, --list and --explain is needed")
    return options


def parse_self_test(argv: Sequence[str]) -> argparse.Namespace:
    """The options of `self-test`."""
    parser = argparse.ArgumentParser(
        prog="enginewire-conformance self-test",
        description="Prove the kit: every mutant of the reference server fails exactly the checks it should.",
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="GLOB",
        help="only these mutants, by name or by what they fail: one_too_*, STR-*",
    )
    parser.add_argument(
        "--quick", action="store_true", help="per mutant only the areas it breaks and what those need"
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes (default 2)")
    parser.add_argument(
        "--shard",
        type=shard,
        default=(1, 1),
        metavar="K/N",
        help="only every Nth mutant from the Kth on: all of them, not --quick, take more than half an hour",
    )
    parser.add_argument(
        "--second-order",
        type=_sample,
        metavar="N",
        help="so many mutants that are wrong only under a drawn condition, or `all`; without --run and "
        "--shard 40 of them, otherwise none",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="draws them (default 1)")
    parser.add_argument(
        "--flakes",
        type=positive,
        metavar="RUNS",
        help="instead of mutants: judge the references so often, at five speeds in turn; --run names checks",
    )
    parser.add_argument(
        "--busy", type=int, default=0, metavar="N", help="with --flakes: keep N cores busy meanwhile"
    )
    return parser.parse_args(argv)


def connection(options: argparse.Namespace, target: str) -> Connection:
    """How to reach `target` under these options. Raises ValueError for a file that is not there."""
    return Connection(target=target, tls=_tls(options), metadata=(*options.metadata, *_key(options)))


def invocation(options: argparse.Namespace) -> str:
    """The options that lead to the same target again; metadata may be secret and is left out."""
    name = "launch" if options.launch else "target"
    words = [f"--{name}", getattr(options, name)]
    if options.prefill:
        words = ["--prefill", options.prefill, "--decode", options.decode]
    for source in options.adapter:
        words += ["--adapter", source]
    for flag in ("tls", "allow_destructive"):
        words += [f"--{flag.replace('_', '-')}"] if getattr(options, flag) else []
    for flag in ("tls_ca", "tls_cert", "tls_key", "tls_name"):
        words += [f"--{flag.replace('_', '-')}", str(value)] if (value := getattr(options, flag)) else []
    for gate in options.declare:
        words += ["--declare", gate]
    if options.time_scale != 1:
        words += ["--time-scale", f"{options.time_scale:g}"]
    return shlex.join([*words, *drawn(options)])


def selection(options: argparse.Namespace) -> Selection:
    """Which checks these options choose."""
    phases = {Phase.SAFE, Phase.LOAD}
    if options.allow_destructive or options.launch:
        phases.add(Phase.DESTRUCTIVE)
    if options.launch:
        phases.add(Phase.LAUNCH)
    return Selection(
        profiles=globs(options.profile),
        level=options.level,
        run=globs(options.run),
        skip=globs(options.skip),
        phases=frozenset(phases),
        repeat=options.repeat,
        one_by_one=options.one_by_one,
        revision=options.revision,
    )


def declared(options: argparse.Namespace, target: Connection) -> frozenset[str]:
    """The gates that hold for this run and that no field of the engine speaks of."""
    gates = set(options.declare)
    if options.launch:
        gates.add("launch")
    if options.prefill:
        gates |= PAIR
    if any(getattr(options, f"{role}_key") for role in ROLES):
        gates.add("keys")
    if options.otlp_listen:
        gates.add("tracing")
    if target.is_tcp:
        gates |= {"keepalive"} | _of_tls(target)
    return frozenset(gates)


def _of_tls(target: Connection) -> set[str]:
    """A target that is shown a certificate is taken to ask for one."""
    if not target.tls:
        return set()
    return {"tls", "client_certificates"} if target.tls.certificate else {"tls"}


def _add_target(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("target")
    group.add_argument("--target", metavar="ADDRESS", help="host:port, unix:/path or dns:///name:port")
    group.add_argument(
        "--launch", metavar="COMMAND", help="start servers with this command; {port} or {socket} is filled in"
    )
    group.add_argument(
        "--ready-timeout",
        type=float,
        default=READY_SECONDS,
        metavar="S",
        help="for a server that is launched, or still loading (default %(default)g)",
    )
    group.add_argument("--tls", action="store_true", help="use TLS")
    group.add_argument(
        "--tls-ca", "--ssl-ca-certs", type=Path, metavar="PEM", help="authorities to trust (implies --tls)"
    )
    group.add_argument(
        "--tls-cert", "--ssl-certfile", type=Path, metavar="PEM", help="our certificate (implies --tls)"
    )
    group.add_argument(
        "--tls-key",
        "--ssl-keyfile",
        type=Path,
        metavar="PEM",
        help="the key of our certificate; in the same file when not set",
    )
    group.add_argument("--tls-name", metavar="NAME", help="name the target's certificate must have")
    group.add_argument(
        "--metadata", action="append", default=[], type=_pair, metavar="K=V", help="sent with every call"
    )
    group.add_argument(
        "--api-key",
        default=os.environ.get(API_KEY, ""),
        metavar="KEY",
        help=f"sent with every call, as `authorization: Bearer KEY`; better set as {API_KEY}",
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("selection")
    group.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="NAMES",
        help="such as core,logprobs or bare",
    )
    group.add_argument(
        "--level",
        type=int,
        choices=[*map(int, Level)],
        default=NO_LEVEL,
        help="core up to this level, without capabilities: 1 streams, 2 operable, 3 complete",
    )
    group.add_argument(
        "--run", action="append", default=[], metavar="GLOBS", help="only these ids: STR-*,USE-01"
    )
    group.add_argument("--skip", action="append", default=[], metavar="GLOBS", help="leave these ids out")
    group.add_argument("--declare", action="append", default=[], choices=sorted(OUTSIDE), help="holds here")
    group.add_argument("--allow-destructive", action="store_true", help="drain and clean up the target too")
    group.add_argument("--repeat", type=positive, default=1, metavar="N", help="run each check N times")
    group.add_argument("--one-by-one", action="store_true", help="never two checks at the same time")
    group.add_argument(
        "--revision", type=_revision, default=CONTRACT_REVISION, metavar="N", help="judge as of this revision"
    )
    group.add_argument("--time-scale", type=scale, default=1.0, metavar="X", help="multiplies every bound")
    group.add_argument("--strict", action="store_true", help="a SHOULD that does not hold is a failure")


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--list", action="store_true", help="list the requirements and exit")
    group.add_argument("--explain", metavar="ID", help="say what a requirement demands and exit")
    group.add_argument(
        "--proto-path", action="store_true", help="print the folder with enginewire/v1/*.proto and exit"
    )
    group.add_argument("--trace", action="store_true", help="show every call of what is unexpected")


def _key(options: argparse.Namespace) -> Metadata:
    return (("authorization", f"Bearer {options.api_key}"),) if options.api_key else ()


def _tls(options: argparse.Namespace) -> Tls | None:
    if not (options.tls or options.tls_ca or options.tls_cert):
        return None
    for path in (options.tls_ca, options.tls_cert, options.tls_key, options.tls_expired_cert):
        if path and not path.is_file():
            raise ValueError(f"{path}: no such file")
    return Tls(ca=options.tls_ca, certificate=options.tls_cert, key=options.tls_key, name=options.tls_name)


def globs(values: Sequence[str]) -> tuple[str, ...]:
    """The parts of options that may be given again and hold several, with commas between."""
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def _pair(text: str) -> Metadata:
    key, separator, value = text.partition("=")
    if not (key and separator):
        raise argparse.ArgumentTypeError("the form is key=value")
    return (key.lower(), value)  # type: ignore[return-value]  # one pair of it


def positive(text: str) -> int:
    """A number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _sample(text: str) -> int:
    """How many, or `all`: more than there are."""
    number = sys.maxsize if text == "all" else int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("at least 0, or all")
    return number


def _revision(text: str) -> int:
    number = positive(text)
    if number > CONTRACT_REVISION:
        raise argparse.ArgumentTypeError(f"this kit knows revisions up to {CONTRACT_REVISION}")
    return number


def shard(text: str) -> tuple[int, int]:
    """`2/5`: the second of five parts."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError("the form is K/N, with K from 1 to N")
    return int(part), int(parts)


def scale(text: str) -> float:
    """A factor above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("above 0")
    return number

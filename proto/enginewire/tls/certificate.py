"""A certificate and its key, as their files are now: read, tried out, and read again after they have changed.

Knows nothing about options, gRPC or HTTP.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from enginewire.files.watched import WatchedFiles, stamps

Side = Literal["server", "client"]
"""Who shows the certificate."""

# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, nameless in Python: we read the dates ourselves and tell them.
NO_CHECK_TIME: Final = ssl.VerifyFlags(0x200000)
# Hello, hello with certificate, certificate and finish, finish.
HANDSHAKE_TURNS: Final = 4
# How often files may change while they are read until that counts as a mistake.
MOST_READS: Final = 3
# Files that are younger may still be in the middle of being replaced, one after the other.
JUST_NOW_SECONDS: Final = 1.0
LOOK_AGAIN_SECONDS: Final = 0.02


class InvalidCertificate(Exception):
    """Files that cannot be used; the message names the option, the file and what it has to hold."""


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Where certificate (with its chain), key and trusted authorities are; `prefix` begins their options."""

    certificate: Path
    key: Path
    authorities: Path | None = None
    prefix: str = "--ssl-"

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        own = (self.certificate, self.key)
        return own if self.authorities is None else (*own, self.authorities)


@dataclass(frozen=True, slots=True)
class Material:
    """What the files held at one moment, as PEM; `not_after` in seconds since the epoch."""

    chain: bytes
    key: bytes
    authorities: bytes | None
    not_after: float


class CertificateFiles(WatchedFiles[Material]):
    """The newest usable material of some files, which are looked at before each handshake."""

    def __init__(self, files: PemFiles, side: Side) -> None:
        """Raises InvalidCertificate, at once or, for files that came just now, a second later."""
        self.files = files
        self.side = side
        first, again = partial(_first, files, side), partial(read, files, side)
        super().__init__(files.paths, again, "certificate", InvalidCertificate, first)

    @property
    def remaining_seconds(self) -> float:
        """How long the certificate in use is still valid; below 0 when it has expired."""
        return self.current().not_after - time.time()


def _first(files: PemFiles, side: Side) -> Material:
    """As `read`; files that are just being replaced are waited for, because nothing from before is in use."""
    end = time.monotonic() + JUST_NOW_SECONDS
    while True:
        try:
            return read(files, side)
        except InvalidCertificate:
            if time.monotonic() > end or not _came_just_now(files):
                raise
        time.sleep(LOOK_AGAIN_SECONDS)


def _came_just_now(files: PemFiles) -> bool:
    """Whether any of them was written or put in its place just now."""
    came_at = [path.stat().st_ctime for path in files.paths if path.exists()]
    return time.time() - max(came_at, default=0.0) < JUST_NOW_SECONDS


def read(files: PemFiles, side: Side) -> Material:
    """The material, which is whole, valid now and fit for its side. Raises InvalidCertificate."""
    for _ in range(MOST_READS):
        before = stamps(files.paths)
        try:
            material = _read_once(files, side)
        except InvalidCertificate:
            if stamps(files.paths) == before:
                raise
        else:
            if stamps(files.paths) == before:
                return material
    raise InvalidCertificate(f"{files.prefix}certfile: {files.certificate}: changes all the time")


def _read_once(files: PemFiles, side: Side) -> Material:
    chain = read_pem(f"{files.prefix}certfile", files.certificate, "CERTIFICATE")
    key = read_pem(f"{files.prefix}keyfile", files.key, "PRIVATE KEY")
    authorities = None
    if files.authorities is not None:
        authorities = read_authorities(f"{files.prefix}ca-certs", files.authorities)
    shown = _tried_out(files, chain, side)
    what = f"{files.prefix}certfile: {files.certificate}"
    needed = "a certificate that is valid now is needed"
    begin, end = (ssl.cert_time_to_seconds(shown[name]) for name in ("notBefore", "notAfter"))
    if time.time() > end:
        raise InvalidCertificate(f"{what}: expired on {shown['notAfter']}; {needed}")
    if time.time() < begin:
        raise InvalidCertificate(f"{what}: not valid before {shown['notBefore']}; {needed}")
    return Material(chain, key, authorities, end)


def read_pem(option: str, path: Path, kind: str) -> bytes:
    """The bytes of a file that holds such a thing without a passphrase. Raises InvalidCertificate."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidCertificate(f"{option}: {path}: {(error.strerror or str(error)).lower()}") from error
    if f"{kind}-----".encode() not in content:
        raise InvalidCertificate(f"{option}: {path}: must hold a {kind} in PEM")
    if b"ENCRYPTED" in content:
        raise InvalidCertificate(f"{option}: {path}: has a passphrase; a key without one is needed")
    return content


def read_authorities(option: str, path: Path) -> bytes:
    """The certificates of those who are trusted to sign others'. Raises InvalidCertificate."""
    content = read_pem(option, path, "CERTIFICATE")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidCertificate(f"{option}: {path}: must hold certificates in PEM") from error
    return content


def server_context(files: PemFiles, *, requires_client: bool) -> ssl.SSLContext:
    """For servers on Python's own TLS, with what the files hold now. Raises InvalidCertificate."""
    context = _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files)
    context.set_alpn_protocols(["http/1.1"])
    # A resumed session would pass with a certificate that is no longer trusted.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    if requires_client and files.authorities is not None:
        authorities = read_authorities(f"{files.prefix}ca-certs", files.authorities)
        context.load_verify_locations(cadata=authorities.decode("ascii"))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _loaded(context: ssl.SSLContext, files: PemFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise InvalidCertificate(
                f"{files.prefix}keyfile: {files.key}: must be the key of {files.certificate}"
            ) from error
        raise InvalidCertificate(
            f"{files.prefix}certfile: {files.certificate}: cannot be used with {files.key}: {_reason(error)}"
        ) from error
    except OSError as error:
        raise InvalidCertificate(f"{files.prefix}certfile: {error.strerror or error}") from error
    return context


def _tried_out(files: PemFiles, chain: bytes, side: Side) -> dict[str, str]:
    """What somebody sees who believes in exactly this certificate, in a handshake without a network."""
    showing, believing = ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT
    if side == "client":
        showing, believing = believing, showing
    shower, believer = (_loaded(ssl.SSLContext(protocol), files) for protocol in (showing, believing))
    shower.check_hostname = believer.check_hostname = False
    shower.verify_mode, believer.verify_mode = ssl.CERT_NONE, ssl.CERT_REQUIRED
    believer.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | NO_CHECK_TIME
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        believer.load_verify_locations(cadata=chain.decode("ascii", "ignore"))
        ends = (
            believer.wrap_bio(there, back, server_side=side == "client"),
            shower.wrap_bio(back, there, server_side=side == "server"),
        )
        for _ in range(HANDSHAKE_TURNS):
            for end in ends:
                _go_on(end)
    except ssl.SSLError as error:
        raise InvalidCertificate(
            f"{files.prefix}certfile: {files.certificate}: not fit for a {side}: {_reason(error)}"
        ) from error
    return {name: value for name, value in (ends[0].getpeercert() or {}).items() if isinstance(value, str)}


def _go_on(end: ssl.SSLObject) -> None:
    with contextlib.suppress(ssl.SSLWantReadError):  # it is the other one's turn
        end.do_handshake()


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()

"""The options by which servers of ours get keys, and which addresses need them. The name is vLLM's.

Each program declares them in a dataclass of its own, with the functions here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from enginewire.access.access import Access
from enginewire.access.api_keys import ApiKeys, InvalidKeys
from enginewire.addresses import listens_on_loopback
from enginewire.options import OptionError, option
from enginewire.tls.listener_options import ListenerOptions, listener_tls, requires_client


class AccessOptions(ListenerOptions, Protocol):
    """What a program's options have that declares these and those of TLS."""

    @property
    def api_key(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def api_key_file(self) -> Path | None: ...  # noqa: D102
    @property
    def allow_insecure(self) -> bool: ...  # noqa: D102


def api_key_option() -> tuple[str, ...]:
    """`api_key`."""
    none: tuple[str, ...] = ()
    return option(
        none,
        "key of which callers need one: KEY, whose role is infer, or ROLE:KEY, with a role of read, infer or"
        " admin; others see it in the process list, so better in the environment or in --api-key-file",
        heading="keys",
        secret=True,
    )


def api_key_file_option() -> Path | None:
    """`api_key_file`."""
    return option(
        None,
        "file with the hashes of more keys, one per line: infer sha256:<hexadecimal>; read again when it"
        " changes",
    )


def allow_insecure_option() -> bool:
    """`allow_insecure`."""
    return option(
        False,
        "allow an address beyond loopback where anyone can send requests, and without TLS read prompts",
    )


def access_of(options: AccessOptions) -> Access:
    """Who the options let in. Raises OptionError, also for files that cannot be used."""
    return Access(listener_tls(options), _keys_of(options))


def _keys_of(options: AccessOptions) -> ApiKeys | None:
    if not options.api_key and options.api_key_file is None:
        return None
    try:
        return ApiKeys(options.api_key, options.api_key_file)
    except InvalidKeys as error:
        raise OptionError(str(error)) from error


def check_exposure(flag: str, host: str, options: AccessOptions) -> None:
    """Raise OptionError when anyone beyond this machine could send requests to `host`, or read along.

    The one rule for all that listens: loopback, or TLS with keys or with certificates of callers, or a word
    that says so.
    """
    has_keys = bool(options.api_key) or options.api_key_file is not None
    is_closed = options.ssl_certfile is not None and (has_keys or requires_client(options))
    if is_closed or options.allow_insecure or listens_on_loopback(host):
        return
    could = [] if options.ssl_certfile else ["read prompts and keys" if has_keys else "read prompts"]
    could += [] if has_keys else ["send requests"]
    raise OptionError(
        f"{flag}: whoever reaches a host beyond loopback could {' and '.join(could)}; use 127.0.0.1 or a Unix"
        " socket, give --ssl-certfile with --ssl-ca-certs or --api-key-file, or say --allow-insecure"
    )

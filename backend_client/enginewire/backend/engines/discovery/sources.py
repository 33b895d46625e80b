"""What each `--target` means: one engine, or something that says where engines are."""

from __future__ import annotations

from collections.abc import Sequence

from enginewire.backend.engines.discovery import dns_name, target_file
from enginewire.backend.engines.discovery.address import Address, Source


def sources_of(targets: Sequence[str]) -> tuple[tuple[Address, ...], tuple[Source, ...]]:
    """Engines that are there for good, and those who are asked for others. Raises InvalidTargets."""
    fixed, sources = [], list[Source]()
    for target in targets:
        if target.startswith(dns_name.SCHEME):
            sources.append(dns_name.DnsName(target))
        elif target.startswith(target_file.SCHEME):
            sources.append(target_file.TargetFile(target))
        else:
            fixed.append(Address(target))
    return tuple(fixed), tuple(sources)

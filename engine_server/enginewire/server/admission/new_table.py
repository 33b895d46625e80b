"""The table of live requests of one server, as its options have it."""

from __future__ import annotations

from typing import Final

from enginewire.access.access import Access
from enginewire.server.admission.adapters import AdapterTable
from enginewire.server.admission.observer import Observer
from enginewire.server.admission.queue.fair_queue import FairQueue
from enginewire.server.admission.queue.limits import QueueLimits
from enginewire.server.admission.table import RequestTable
from enginewire.server.config.options import ServerOptions
from enginewire.server.config.our_engines import OurEngine

UNCHECKED: Final = frozenset({OurEngine.TORCH, OurEngine.MOCKER})
"""Engines that are proven here: what they send is not checked, unless somebody asks for it."""


def new_table(options: ServerOptions, access: Access, observer: Observer) -> RequestTable:
    """Callers share the engine as `access` tells them apart; `observer` is told of requests."""
    limits = QueueLimits(options.max_num_queued_reqs, options.max_num_queued_tokens)
    folder = options.adapter_folder
    adapters = AdapterTable(folder, options.max_loras) if folder else None
    checks = options.engine not in UNCHECKED if options.check_engine is None else options.check_engine
    return RequestTable(
        limits,
        log_requests=options.log_requests,
        adapters=adapters,
        check_engine=checks,
        observer=observer,
        queue=FairQueue(options.max_caller_share, access.num_parties),
    )

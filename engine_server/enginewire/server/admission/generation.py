"""One request to generate on its way into the engine: what it needs there, and its end if it never gets
there.

Knows nothing about other requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from enginewire import v1 as pb
from enginewire.access.caller import Party
from enginewire.access.meters import Need
from enginewire.server.admission.delivery import Sink
from enginewire.server.admission.live import Live, event_names
from enginewire.server.engines.answer import room_for
from enginewire.server.engines.interface import CheckingEngine, GenerateContext, StepEngine
from enginewire.server.engines.iterator_driver import Progress
from enginewire.server.engines.step_streams import open_choices
from enginewire.server.validation.payloads import prompt_length


class Generation:
    """A request that was checked, and its engine."""

    def __init__(
        self, engine: StepEngine, request: pb.PreprocessedRequest, context: GenerateContext, need: Need
    ) -> None:
        self._engine = engine
        self._request = request
        self._context = context
        self.need = need

    @property
    def routing(self) -> pb.RoutingHints:
        """Its priority, among others."""
        return self._request.routing

    @property
    def may_wait(self) -> bool:
        """Not with KV that was handed over, which is kept for a short time only."""
        return not self._request.HasField("prefill_result")

    def start(self) -> None:
        """Put it into the engine. Raises EngineError."""
        self._engine.submit(self._request, self._context)

    def check(self) -> None:
        """Raise EngineError if the engine can already say that it would refuse it."""
        if isinstance(self._engine, CheckingEngine):
            self._engine.check(self._request, self._context)

    def cancelled(self) -> Iterable[pb.LLMEngineOutput]:
        """Its terminal outputs, if it has not been started."""
        return Progress(self._request).cancel()


def need_of(request: pb.PreprocessedRequest, config: pb.EngineConfig) -> Need:
    """What it takes: a slot for each choice, those that are not returned among them, and all their tokens."""
    options = request.sampling_options
    num_choices = open_choices(request, config.role) + hidden_choices(options)
    num_prompt = prompt_length(request)
    return Need(
        num_choices, num_prompt, num_prompt + num_choices * room_for(request, config), request.is_probe
    )


def live_of(
    request: pb.PreprocessedRequest,
    context: GenerateContext,
    sink: Sink,
    adapter: str,
    config: pb.EngineConfig,
    party: Party,
) -> Live:
    """What is kept of a request while it is in the engine; its context leads there."""
    num_choices, num_hidden = open_choices(request, config.role), hidden_choices(request.sampling_options)
    asked_events = event_names(request.annotations)
    context.sink = live = Live(context, sink, num_choices, adapter, num_hidden, asked_events, party=party)
    return live


def hidden_choices(options: pb.SamplingOptions) -> int:
    """Candidates that are computed and not returned."""
    return max(options.best_of - max(options.n, 1), 0)

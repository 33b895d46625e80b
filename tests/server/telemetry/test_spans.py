"""The spans of an engine's requests: cut where they waited, computed and generated; kept for nobody else."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from enginewire import v1 as pb
from enginewire.server.admission.live import Discard
from enginewire.server.admission.observer import Observer, Several
from enginewire.server.admission.origin import Origin
from enginewire.server.admission.queue.limits import QueueLimits
from enginewire.server.admission.table import RequestTable
from enginewire.server.engines.interface import GenerateContext, StepOutputs
from enginewire.server.failures import EngineError, StepFailed
from enginewire.server.telemetry.spans import RequestSpans
from tests.enginewire.tracing.test_trace_context import SPAN, TRACE, VALID
from tests.server.admission.test_table import CONFIG, ManualEngine
from tests.server.serving import ask


class Traced:
    """A table on an engine that is moved by hand, and the spans that come of it."""

    def __init__(self, **sampling: object) -> None:
        provider, self.memory = TracerProvider(**sampling), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.now = 100.0
        self.spans = RequestSpans(provider.get_tracer("test"), lambda: self.now)
        self.table = RequestTable(QueueLimits(2, 10_000), observer=Several([Observer(), self.spans]))
        self.table.open(ManualEngine(self.table), CONFIG)

    def submit(self, name: str = "a", trace: str = VALID, **asked: object) -> GenerateContext:
        request = ask(name, **asked)
        return self.table.submit(
            request, Discard(), None, Origin(trace={"traceparent": trace} if trace else {})
        )

    def end(self, context: GenerateContext, reason=pb.FINISH_REASON_LENGTH, index: int = 0) -> None:
        usage = pb.CompletionUsage(prompt_tokens=3, completion_tokens=1)
        usage.prompt_tokens_details.cached_tokens = 2
        output = pb.LLMEngineOutput(index=index, finish_reason=reason, completion_usage=usage)
        self.table.deliver(StepOutputs(step=2, outputs=[(context, output)]))

    def token(self, context: GenerateContext) -> None:
        self.table.deliver(StepOutputs(1, [context], [0], [0], [1]))

    @property
    def found(self) -> dict[str, ReadableSpan]:
        spans = self.memory.get_finished_spans()
        assert len({span.name for span in spans}) == len(spans)
        return {span.name: span for span in spans}


async def test_a_request_is_cut_where_it_began_and_where_its_first_token_came() -> None:
    traced = Traced()
    traced.spans.model = "m"
    context = traced.submit(max_tokens=1)
    context.running_since = 101.0
    traced.now = 103.0
    traced.token(context)
    traced.now = 107.0
    traced.token(context)
    traced.now = 110.0
    traced.end(context)
    found = traced.found
    whole, queue, prefill, decode = (
        found[f"engine.{part}"] for part in ("generate", "queue", "prefill", "decode")
    )
    assert (whole.parent.span_id, whole.context.trace_id) == (int(SPAN, 16), int(TRACE, 16))
    assert {part.parent.span_id for part in (queue, prefill, decode)} == {whole.context.span_id}
    seconds = [
        tuple((at - whole.start_time) / 1e9 for at in (span.start_time, span.end_time))
        for span in (queue, prefill, decode, whole)
    ]
    assert seconds == [(0, 1), (1, 3), (3, 10), (0, 10)]
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("length",)
    usage = ("input_tokens", "output_tokens", "cache_read.input_tokens")
    assert [whole.attributes[f"gen_ai.usage.{name}"] for name in usage] == [3, 1, 2]
    assert (whole.attributes["gen_ai.response.id"], whole.attributes["gen_ai.response.model"]) == ("a", "m")
    assert traced.spans._live == {}
    assert traced.spans._unanswered == set()


async def test_the_engine_sends_its_own_span_on() -> None:
    traced = Traced()
    context = traced.submit()
    traced.end(context)
    (whole,) = (span for span in traced.memory.get_finished_spans() if span.name == "engine.generate")
    assert context.trace["traceparent"] == f"00-{TRACE}-{whole.context.span_id:016x}-01"


async def test_an_engine_that_does_not_tell_its_beginning_has_no_queue() -> None:
    traced = Traced()
    context = traced.submit()
    traced.token(context)
    traced.end(context)
    assert set(traced.found) == {"engine.generate", "engine.decode"}


async def test_what_ends_in_the_queue_has_nothing_else() -> None:
    traced = Traced()
    first = traced.submit("a")
    first.running_since = 1.0
    traced.end(first)
    traced.memory.clear()
    second = traced.submit("b")
    traced.end(second, pb.FINISH_REASON_CANCELLED)
    found = traced.found
    assert set(found) == {"engine.generate", "engine.queue"}
    assert found["engine.generate"].attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert found["engine.generate"].status.status_code == StatusCode.UNSET


async def test_the_end_of_each_choice_is_told() -> None:
    traced = Traced()
    context = traced.submit(sampling_options=pb.SamplingOptions(n=2))
    traced.end(context, pb.FINISH_REASON_EOS, index=1)
    traced.end(context, pb.FINISH_REASON_LENGTH)
    whole = traced.found["engine.generate"]
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("stop", "length")
    assert whole.attributes["gen_ai.request.choice.count"] == 2


async def test_a_failure_is_told_by_its_reason_only() -> None:
    traced = Traced()
    context = traced.submit()
    traced.table.deliver(StepOutputs(1, failures=[(context, StepFailed("with the prompt in it"))]))
    whole = traced.found["engine.generate"]
    assert whole.attributes["error.type"] == "internal"
    assert (whole.status.status_code, whole.status.description) == (StatusCode.ERROR, None)
    assert whole.events == ()


async def test_a_refusal_is_a_span_of_the_callers_trace() -> None:
    traced = Traced()
    request = ask("a", max_tokens=1)
    request.request.sampling_options.temperature = -1
    with pytest.raises(EngineError):
        traced.table.submit(request, Discard(), None, Origin(trace={"traceparent": VALID}))
    (refused,) = traced.memory.get_finished_spans()
    assert (refused.name, refused.attributes["error.type"]) == ("engine.generate", "invalid_request")
    assert refused.parent.span_id == int(SPAN, 16)


async def test_what_is_sent_again_is_linked_to_what_was_sent_before() -> None:
    traced = Traced()
    request = ask("a")
    request.request.migration_link.CopyFrom(pb.TraceLink(trace_id=TRACE, span_id="1" * 16))
    context = traced.table.submit(request, Discard(), None, Origin(trace={"traceparent": VALID}))
    traced.end(context)
    (link,) = traced.found["engine.generate"].links
    assert link.context.span_id == int("1" * 16, 16)


@pytest.mark.parametrize("sampling", [{}, {"sampler": ALWAYS_OFF}])
async def test_what_the_sampler_leaves_out_is_not_kept(sampling: dict[str, object]) -> None:
    """By the word of the caller, or of the operator."""
    traced = Traced(**sampling)
    context = traced.submit(trace="" if sampling else VALID[:-2] + "00")
    assert traced.spans._live == {}
    is_sampled = int(context.trace["traceparent"][-2:], 16) & 1
    assert not is_sampled
    traced.token(context)
    traced.end(context)
    assert traced.memory.get_finished_spans() == ()

"""For each invariant an exchange that breaks it, and nothing that it stands on."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.made import (
    EOS,
    INFO,
    LIFE,
    called,
    changed,
    frame,
    frames,
    generated,
    outputs,
    refused,
    request,
    status,
)

Facts = pb.GetEngineInfoResponse
Broken = tuple[Exchange, Facts]
Change = Callable[[list[pb.LLMEngineOutput]], object]
CASES: dict[str, list[tuple[str, Callable[[], Broken]]]] = {}
"""By the name of the invariant: what is wrong in words, and the exchange."""

STOP, LENGTH, CANCELLED = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_CANCELLED
TWO = ((11, 12, 13, 14), (21, 22, 23, 24))
NOTE = pb.EngineEvent(event="made.note")


def breaks(invariant: str, wrong: str) -> Callable[[Callable[[], Exchange | Broken]], None]:
    """Register an exchange that breaks an invariant."""

    def register(make: Callable[[], Exchange | Broken]) -> None:
        def made() -> Broken:
            exchange = make()
            return exchange if isinstance(exchange, tuple) else (exchange, INFO)

        CASES.setdefault(invariant, []).append((wrong, made))

    return register


def of_life(name: str) -> Facts:
    """The facts of an engine that says which life it is in."""
    info = pb.GetEngineInfoResponse()
    info.CopyFrom(INFO)
    info.engine_lifetime_id = name
    return info


def output(invariant: str, wrong: str, change: Change, tokens: object = None, **asked: object) -> None:
    """Register an answer in which the outputs of a correct one are changed."""
    reasons = asked.pop("reasons", ())
    run = asked.pop("run", 1)

    def make() -> Exchange:
        one = request(**asked)
        ids = tokens or (TWO if one.request.sampling_options.n > 1 else TWO[:1])
        made = outputs(one, ids, reasons, run)  # type: ignore[arg-type]  # as the caller gives them
        change(made)
        return generated(one, made)

    breaks(invariant, wrong)(make)


def last(change: Callable[[pb.LLMEngineOutput], object]) -> Change:
    """Of the last output."""
    return lambda made: change(made[-1])


def each(change: Callable[[pb.LLMEngineOutput], object]) -> Change:
    """Of all outputs."""
    return lambda made: [change(one) for one in made]


def put(name: str, value: object, number: int = -1) -> Change:
    """A field of one output has another value."""
    return lambda made: setattr(made[number], name, value)


# -- the shape

output("an_answer_is_not_empty", "no message", lambda made: made.clear())
output("choices_are_those_asked_for", "a choice too many", put("index", 1, 0))
output("reasons_are_known", "99", put("finish_reason", 99))
output("each_choice_has_its_terminal", "none", put("finish_reason", 0))
output("each_choice_has_its_terminal", "two", lambda made: made.append(made[-1]))
output("each_choice_has_its_terminal", "none of choice 1", lambda made: made.pop(), n=2)
output(
    "a_terminal_is_the_last_of_its_choice",
    "a token behind it",
    lambda made: made.append(pb.LLMEngineOutput(token_ids=[15], first_output_position=4)),
)
output("outputs_bring_something", "nothing", lambda made: made.insert(1, pb.LLMEngineOutput()))
output(
    "tokens_are_deltas",
    "all of them again",
    lambda made: [
        setattr(one, "first_output_position", 0)
        or one.token_ids.__setitem__(slice(None), TWO[0][: number + 1])
        for number, one in enumerate(made)
    ],
)
output(
    "resumed_positions_go_on",
    "from nothing",
    put("first_output_position", 0, 0),
    tokens=((13, 14),),
    resume=pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[11, 12])]),
)
output("positions_count_the_tokens", "a gap", put("first_output_position", 2, 1))
output("positions_count_the_tokens", "over both choices", put("first_output_position", 1, 1), n=2)
output("positions_count_the_tokens", "runs and not tokens", put("first_output_position", 1), run=2)
output("ids_are_of_the_vocabulary", "128", lambda made: made[1].token_ids.__setitem__(0, 128))
output(
    "ids_are_of_the_vocabulary",
    "an alternative",
    lambda made: made[1].logprobs.top_token_ids.__setitem__(1, 4000),
    logprobs=2,
)


@breaks("an_answer_ends_in_one_way", "terminal and status")
def _() -> Exchange:
    exchange = generated(request(), outputs(request()))
    failed = refused(request(), pb.ErrorDetail(reason=pb.ERROR_REASON_CANCELLED), grpc.StatusCode.CANCELLED)
    exchange.code, exchange.trailing_metadata = failed.code, failed.trailing_metadata
    return exchange


@breaks("messages_name_their_request", "another id")
def _() -> Exchange:
    exchange = generated(request(), outputs(request()))
    exchange.messages[2].request_id = "r-2"  # type: ignore[attr-defined]  # a GenerateResponse
    return exchange


@breaks("the_life_is_told_once", "on each message")
def _() -> Exchange:
    exchange = generated(request(), outputs(request()))
    exchange.messages[1].engine_lifetime_id = LIFE  # type: ignore[attr-defined]  # a GenerateResponse
    return exchange


# -- endings

FINISHED = pb.Resume(choices=[pb.ResumedChoice(index=0, generated_token_ids=[9], finished=True)])


@breaks("finished_choices_are_silent", "it sends")
def _() -> Exchange:
    one = request(n=2, resume=FINISHED)
    made = [pb.LLMEngineOutput(token_ids=[8], first_output_position=1), *outputs(one, TWO)]
    return generated(one, made, None)


RESUMED = pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[8, 9])])
output("max_tokens_holds", "one too many", lambda made: None, tokens=((11, 12, 13, 14, 15),))
output("max_tokens_holds_with_resume", "what was handed in on top", lambda made: None, resume=RESUMED)
output(
    "one_token_is_one",
    "none at all",
    lambda made: made[0].ClearField("token_ids"),
    tokens=((11,),),
    max_tokens=1,
)
output("the_window_holds", "cut at two", lambda made: None, tokens=((11, 12),))
output("the_window_holds", "beyond it", lambda made: None, tokens=(range(10, 80),), max_tokens=99)
output("max_tokens_ends_with_length", "EOS", put("finish_reason", pb.FINISH_REASON_EOS))
output(
    "the_window_ends_with_length",
    "an error",
    put("finish_reason", pb.FINISH_REASON_ERROR),
    tokens=(range(10, 71),),
    max_tokens=99,
)
output(
    "min_tokens_holds",
    "too early",
    lambda made: None,
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[12],
    min_tokens=3,
)
output(
    "min_tokens_holds_with_resume",
    "too early",
    lambda made: None,
    tokens=((13,),),
    reasons=(STOP,),
    stop_token_ids=[13],
    min_tokens=4,
    resume=RESUMED,
)
output("caller_stops_end_a_choice", "it goes on", lambda made: None, stop_token_ids=[12])
output("caller_stops_end_a_choice", "the last one as LENGTH", lambda made: None, stop_token_ids_visible=[14])
output(
    "caller_stops_end_a_choice", "the seventeenth id", lambda made: None, stop_token_ids=[*range(40, 56), 13]
)
output("system_stops_end_a_choice", "it goes on", lambda made: None, eos_token_ids=[12], ignore_eos=False)
output("system_stops_end_a_choice", "LENGTH", lambda made: None, stop_token_ids_hidden=[14], ignore_eos=None)
output("system_stops_end_a_choice", "in spite of ignore_eos", put("finish_reason", pb.FINISH_REASON_EOS))
output(
    "the_token_that_stops_is_the_last",
    "none",
    lambda made: None,
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[13],
)
output(
    "the_token_that_stops_is_the_last",
    "no EOS",
    put("finish_reason", pb.FINISH_REASON_EOS),
    ignore_eos=None,
    max_tokens=9,
)
output(
    "a_stop_names_its_match",
    "no match",
    last(lambda one: one.ClearField("stop_match")),
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[12],
)
output(
    "a_stop_names_its_match",
    "another of the list",
    last(lambda one: setattr(one.stop_match, "token_id", 50)),
    tokens=((11, 12),),
    reasons=(STOP,),
    stop_token_ids=[50, 12],
)
output("a_stop_names_its_match", "with LENGTH", last(lambda one: setattr(one.stop_match, "token_id", 50)))

# -- usage


def usage(name: str, value: int) -> Change:
    """One number of the usage is another one."""
    return last(lambda one: setattr(one.completion_usage, name, value))


def fewer(made: list[pb.LLMEngineOutput]) -> None:
    """One token is not counted."""
    made[-1].completion_usage.completion_tokens -= 1
    made[-1].completion_usage.total_tokens -= 1


output("usage_is_on_the_last_terminal", "nowhere", last(lambda one: one.ClearField("completion_usage")))
output(
    "usage_is_on_the_last_terminal",
    "on both",
    lambda made: made[-2].completion_usage.CopyFrom(made[-1].completion_usage),
    n=2,
)
output("usage_waits_for_the_end", "on the first", lambda made: made[0].completion_usage.SetInParent())
output(
    "aborted_answers_have_usage",
    "none",
    last(lambda one: one.ClearField("completion_usage")),
    reasons=(CANCELLED,),
)
output("aborted_answers_have_usage", "of less", fewer, reasons=(CANCELLED,))
output("completion_tokens_are_counted", "without the last", fewer)
output("tokens_of_all_choices_are_counted", "without the last", fewer, n=2)
output(
    "tokens_handed_in_are_counted",
    "without them",
    usage("completion_tokens", 2),
    tokens=((13, 14),),
    resume=RESUMED,
)
output("prompt_tokens_are_counted", "without those that were cached", usage("prompt_tokens", 2))
output("the_total_is_the_sum", "another", usage("total_tokens", 1))
output(
    "cached_tokens_are_of_the_prompt",
    "more",
    last(lambda one: setattr(one.completion_usage.prompt_tokens_details, "cached_tokens", 4)),
)
output(
    "cached_tokens_are_of_the_prompt",
    "past the cache",
    last(lambda one: setattr(one.completion_usage.prompt_tokens_details, "cached_tokens", 2)),
    bypass_prefix_cache=True,
)

# -- log-probabilities


def row(name: str, number: int, value: float) -> Change:
    """One value of a table is another one."""
    return lambda made: getattr(made[1].logprobs, name).__setitem__(number, value)


output("each_token_has_a_row", "none", lambda made: made[1].ClearField("logprobs"), logprobs=2)
output("nobody_gets_rows_unasked", "one", lambda made: made[1].logprobs.token_logprobs.append(-1.0))
output("nobody_gets_rows_unasked", "a sum", put("cum_log_probs", -1.0))
output("values_are_logarithms", "above 0", row("token_logprobs", 0, 0.5), logprobs=2)
output("values_are_logarithms", "NaN", row("top_logprobs", 1, float("nan")), logprobs=2)
output(
    "alternatives_are_a_ranking", "a short row", lambda made: made[1].logprobs.top_logprobs.pop(), logprobs=2
)
output("alternatives_are_a_ranking", "twice", row("top_token_ids", 1, 12), logprobs=2)
output("alternatives_are_a_ranking", "unordered", row("top_logprobs", 1, -0.1), logprobs=2)
output(
    "alternatives_are_a_ranking",
    "unasked selected ones",
    lambda made: made[1].logprobs.selected_logprobs.append(-1.0),
    logprobs=2,
)
output("values_are_those_of_the_tokens", "of its neighbour", row("token_logprobs", 0, -0.7), logprobs=2)
output("ranks_are_those_of_the_values", "0", lambda made: made[1].logprobs.token_ranks.append(0), logprobs=2)
output(
    "greedy_tokens_are_the_first",
    "the second",
    lambda made: (
        made[1].logprobs.top_token_ids.__setitem__(slice(None), [99, 98])
        or made[1].logprobs.top_logprobs.__setitem__(slice(None), [-0.2, -3.0])
    ),
    logprobs=2,
)
output(
    "probabilities_are_shares",
    "more than 1",
    lambda made: made[1].logprobs.top_logprobs.__setitem__(slice(None), [-0.5, -0.5]),
    logprobs=2,
)
output("prompt_rows_are_of_the_prompt", "unasked", lambda made: made[0].prompt_logprobs.SetInParent())
output(
    "prompt_rows_are_of_the_prompt",
    "too few",
    lambda made: made[0].prompt_logprobs.logprobs.token_logprobs.append(-1.0),
    prompt_logprobs=0,
)
output(
    "prompt_rows_are_of_the_prompt",
    "late",
    lambda made: made[1].prompt_logprobs.logprobs.token_logprobs.extend([-1.0, -1.0]),
    prompt_logprobs=0,
)
output("sums_run", "begins again", put("cum_log_probs", -0.5, 2), logprobs=0)
output(
    "sums_of_resumed_choices_run",
    "from nothing",
    put("cum_log_probs", -0.5, 0),
    tokens=((13, 14),),
    logprobs=0,
    resume=pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[8], cum_log_probs=-7.0)]),
)

# -- events and roles


@breaks("events_are_asked_for", "nobody asked")
def _() -> Exchange:
    return generated(request(), [NOTE, *outputs(request())])


@breaks("events_come_before_the_end", "behind it")
def _() -> Exchange:
    one = request(annotations=["made.note"])
    return generated(one, [*outputs(one), NOTE])


@breaks("known_annotations_are_answered", "no event")
def _() -> Exchange:
    one = request(annotations=["made.note:x", "other"])
    return generated(one, outputs(one))


@breaks("prefill_answers_are_one_output", "four of them")
def _() -> Broken:
    return generated(request(), outputs(request())), changed(role=pb.ENGINE_ROLE_PREFILL)


output(
    "hand_offs_are_of_prefills_that_worked",
    "it failed",
    last(lambda one: one.prefill_handoff.SetInParent()),
    reasons=(pb.FINISH_REASON_ERROR,),
)
output(
    "probes_generate",
    "nothing",
    lambda made: made[0].ClearField("token_ids"),
    tokens=((11,),),
    is_probe=True,
    max_tokens=None,
)

# -- failures

INVALID = pb.ERROR_REASON_INVALID_REQUEST
CONTEXT = pb.ERROR_REASON_CONTEXT_EXCEEDED


@breaks("failures_have_details", "none")
def _() -> Exchange:
    return refused(request(), None)


@breaks("failures_have_details", "none for a full queue")
def _() -> Exchange:
    return refused(request(), None, grpc.StatusCode.RESOURCE_EXHAUSTED)


@breaks("failures_have_details", "none on a handle")
def _() -> Exchange:
    bare = status(None, grpc.StatusCode.DEADLINE_EXCEEDED)
    return frames([(1, request())], [frame(1, bare)])


@breaks("details_are_as_the_table_says", "retryable")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=CONTEXT, retryable=True))


@breaks("details_are_as_the_table_says", "another code")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=CONTEXT), grpc.StatusCode.INTERNAL)


@breaks("details_are_as_the_table_says", "no reason")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(field="token_ids"))


@breaks("a_drain_says_retryable", "it does not")
def _() -> Exchange:
    draining = pb.ErrorDetail(reason=pb.ERROR_REASON_DRAINING)
    return refused(request(), draining, grpc.StatusCode.UNAVAILABLE)


@breaks("invalid_requests_have_a_field", "none")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=INVALID))


@breaks("the_status_says_what_the_call_says", "another code in it")
def _() -> Exchange:
    exchange = refused(request(), pb.ErrorDetail(reason=CONTEXT))
    ((key, _),) = exchange.trailing_metadata
    other = status(pb.ErrorDetail(reason=CONTEXT), grpc.StatusCode.NOT_FOUND)
    exchange.trailing_metadata = ((key, other.SerializeToString()),)
    return exchange


@breaks("internal_failures_have_an_id", "none")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=pb.ERROR_REASON_INTERNAL), grpc.StatusCode.INTERNAL)


@breaks("mismatches_tell_the_range", "no range")
def _() -> Exchange:
    detail = pb.ErrorDetail(reason=pb.ERROR_REASON_REVISION_MISMATCH, field="client_revision")
    return refused(request(), detail, grpc.StatusCode.FAILED_PRECONDITION)


@breaks("messages_tell_no_secrets", "a path")
def _() -> Exchange:
    return refused(request(), pb.ErrorDetail(reason=CONTEXT), text="no such thing: /home/me/model")


@breaks("refusals_come_alone", "behind a message")
def _() -> Exchange:
    exchange = refused(request(), pb.ErrorDetail(reason=CONTEXT))
    exchange.arrived = generated(request(), outputs(request())[:1]).arrived
    return exchange


@breaks("refusals_come_alone", "behind the acceptance")
def _() -> Exchange:
    detail = pb.ErrorDetail(reason=pb.ERROR_REASON_QUEUE_FULL, retryable=True)
    exchange = refused(request(), detail, grpc.StatusCode.RESOURCE_EXHAUSTED)
    exchange.initial_metadata = (("enginewire-lifetime-id", LIFE),)
    return exchange


@breaks("answers_fit_a_message", "5 MiB")
def _() -> Exchange:
    text = "CLIENT: Received message larger than max (5242880 vs. 4194304)"
    return refused(request(), None, grpc.StatusCode.RESOURCE_EXHAUSTED, text)


# -- frames

ONE = [(1, request())]


@breaks("frames_can_be_read", "columns of other lengths")
def _() -> Exchange:
    return frames(ONE, [pb.GenerateMultiplexedResponse(handles=[1], token_ids=[1, 2])])


@breaks("frames_can_be_read", "a handle that was never used")
def _() -> Exchange:
    return frames(ONE, [frame(2, *outputs(request()))], None)


@breaks("steps_do_not_go_back", "5, 4")
def _() -> Exchange:
    return frames([], [pb.GenerateMultiplexedResponse(step=5), pb.GenerateMultiplexedResponse(step=4)])


@breaks("a_stream_ends_after_its_requests", "before one of them")
def _() -> Exchange:
    return frames(ONE, [frame(1, *outputs(request())[:2], accepted="r-1")])


@breaks("nothing_follows_the_end", "a token")
def _() -> Exchange:
    late = frame(1, pb.LLMEngineOutput(token_ids=[1], first_output_position=4))
    return frames(ONE, [frame(1, *outputs(request()), accepted="r-1"), late])


@breaks("acceptance_comes_once", "twice")
def _() -> Exchange:
    whole = frame(1, *outputs(request()), accepted="r-1")
    return frames(ONE, [frame(1, accepted="r-1"), whole])


@breaks("acceptance_comes_once", "never")
def _() -> Exchange:
    return frames(ONE, [frame(1, *outputs(request()))])


@breaks("acceptance_names_the_request", "another")
def _() -> Exchange:
    return frames(ONE, [frame(1, *outputs(request()), accepted="r-2")])


# -- the load


def load(**fields: object) -> pb.Load:
    """An idle load with some numbers changed."""
    made = pb.Load(state=pb.ENGINE_STATE_READY, kv_blocks_total=8)
    made.MergeFrom(pb.Load(**fields))  # type: ignore[arg-type]  # what a test needs
    return made


def told(one: pb.Load) -> Exchange:
    """A GetLoad."""
    return called("DiscoveryService.GetLoad", pb.GetLoadRequest(), pb.GetLoadResponse(load=one))


def watched(gap: float, **asked: int) -> Exchange:
    """A WatchLoad with a load every `gap` seconds."""
    answers = [pb.WatchLoadResponse(load=load(step=step)) for step in range(8)]
    return called("DiscoveryService.WatchLoad", pb.WatchLoadRequest(**asked), *answers, gap=gap)


breaks("states_have_names", "none")(lambda: told(pb.Load(kv_blocks_total=8)))
breaks("blocks_add_up", "other blocks")(lambda: told(load(kv_blocks_total=9)))
breaks("blocks_add_up", "more in use")(lambda: told(load(kv_blocks_used=9)))
breaks("running_sequences_are_bounded", "five")(lambda: told(load(running=5)))
breaks("the_load_is_not_told_too_often", "twice as often")(lambda: watched(0.05, min_interval_ms=100))

# -- other calls


@breaks("messages_are_small", "5 MiB")
def _() -> Exchange:
    exchange = told(load())
    exchange.arrived[0].size = 5 * 1024 * 1024
    return exchange


@breaks("metadata_is_small", "9 KiB")
def _() -> Exchange:
    exchange = told(load())
    exchange.trailing_metadata = (("x", "y" * 9000),)
    return exchange


@breaks("facts_stay_the_same", "another name")
def _() -> Exchange:
    other = changed()
    other.instance_id = "other"
    return called("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest(), other)


def aborted(*results: str) -> Exchange:
    """An Abort of two ids with these outcomes."""
    done = [pb.AbortResult(request_id=name, outcome=pb.ABORT_OUTCOME_UNKNOWN) for name in results]
    asked = pb.AbortRequest(request_ids=["a", "b"])
    return called("EngineService.Abort", asked, pb.AbortResponse(results=done))


breaks("aborts_have_an_outcome_per_id", "one is missing")(lambda: aborted("a"))
breaks("aborts_have_an_outcome_per_id", "turned")(lambda: aborted("b", "a"))


@breaks("drains_have_an_end", "none")
def _() -> Exchange:
    draining = pb.DrainResponse(state=pb.DRAIN_STATE_DRAINING)
    return called("EngineService.Drain", pb.DrainRequest(), draining)


def embedded(*sizes: int, tokens: int = 3, request_id: str = "e-1", **asked: object) -> Exchange:
    """An Embed of two inputs with vectors of these sizes."""
    inputs = [pb.TokenSequence(token_ids=[1, 2]), pb.TokenSequence(token_ids=[3])]
    wanted = pb.PreprocessedEmbeddingRequest(token_ids=inputs, **asked)  # type: ignore[arg-type]  # a test
    vectors = [pb.Embedding(values=[0.5] * size) for size in sizes]
    made = pb.EmbeddingsEngineOutput(embeddings=vectors, prompt_tokens=tokens, total_tokens=tokens)
    answer = pb.EmbedResponse(output=made, request_id=request_id)
    return called("EmbeddingService.Embed", pb.EmbedRequest(request_id="e-1", request=wanted), answer)


breaks("each_input_has_a_vector", "one")(lambda: embedded(4))
breaks("vectors_are_numbers", "of other sizes")(lambda: embedded(4, 5))
breaks("vectors_are_numbers", "than were asked for")(lambda: embedded(4, 4, dimensions=2))
breaks("inputs_are_counted", "of the first alone")(lambda: embedded(4, 4, tokens=2))
breaks("embeddings_name_their_request", "another")(lambda: embedded(4, 4, request_id="e-2"))

# -- streams

DATA = b"{}"
SHA = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
DIGEST = "29e88a1396af11701978d989b57a561c6f3e65f75c0e72c093952c3bb49edc02"
FILES = [
    pb.TokenizerFile(name=name, size=2, sha256=SHA) for name in ("tokenizer.json", "tokenizer_config.json")
]


def tokenizer(change: Callable[[list[pb.GetTokenizerResponse]], object], if_none_match: str = "") -> Exchange:
    """The two files of the example in docs/contract.md, changed."""
    manifest = pb.TokenizerManifest(digest=DIGEST, files=FILES)
    pieces = [pb.GetTokenizerResponse(manifest=manifest)]
    for file in FILES:
        pieces.append(pb.GetTokenizerResponse(chunk=pb.TokenizerChunk(name=file.name, data=DATA)))
    change(pieces)
    return called(
        "DiscoveryService.GetTokenizer", pb.GetTokenizerRequest(if_none_match=if_none_match), *pieces
    )


breaks("a_manifest_comes_first", "last")(lambda: tokenizer(lambda pieces: pieces.reverse()))
breaks("chunks_are_in_order", "an offset")(
    lambda: tokenizer(lambda pieces: setattr(pieces[1].chunk, "offset", 1))
)
breaks("chunks_are_in_order", "a file is missing")(lambda: tokenizer(lambda pieces: pieces.pop()))
breaks("digests_are_computed_as_written", "x")(
    lambda: tokenizer(lambda pieces: setattr(pieces[0].manifest, "digest", "x"))
)
breaks("current_copies_are_not_sent", "it is")(lambda: tokenizer(lambda pieces: None, DIGEST))
breaks("chunks_are_small", "2 MiB")(
    lambda: tokenizer(lambda pieces: setattr(pieces[1].chunk, "data", bytes(2**21)))
)


def cached(*changes: pb.KvEvent) -> Exchange:
    """A subscription that begins with a snapshot."""
    cleared = pb.KvEvent(sequence=7, cleared=pb.KvCacheCleared())
    answer = pb.SubscribeKvEventsResponse(events=[cleared, *changes])
    return called("KvService.SubscribeKvEvents", pb.SubscribeKvEventsRequest(), answer, code=None)


def stored(sequence: int, tokens: int = 16) -> pb.KvEvent:
    """One block."""
    block = pb.KvBlocksStored(block_hashes=[1], token_ids=[5] * tokens, block_size=16)
    return pb.KvEvent(sequence=sequence, stored=block)


breaks("sequences_grow_by_one", "a gap")(lambda: cached(stored(7), stored(8), stored(10)))
breaks("stored_blocks_have_their_tokens", "fifteen")(lambda: cached(stored(8, tokens=15)))

RIGHT: dict[str, Callable[[], Broken | Exchange]] = {
    "an answer": lambda: generated(request(), outputs(request())),
    "two choices with rows": lambda: generated(
        request(n=2, logprobs=2), outputs(request(n=2, logprobs=2), TWO)
    ),
    "runs": lambda: generated(request(logprobs=1), outputs(request(logprobs=1), run=3)),
    "a stop": lambda: generated(request(stop_token_ids=[40, 12]), outputs(request(), ((11, 12),), (STOP,))),
    "an end of sequence": lambda: generated(
        request(ignore_eos=None), outputs(request(), ((11, EOS),), (pb.FINISH_REASON_EOS,))
    ),
    "an abort": lambda: generated(request(), outputs(request(), ((11, 12),), (CANCELLED,))),
    "a call that we left": lambda: generated(request(), outputs(request())[:2], grpc.StatusCode.CANCELLED),
    "a call that is open": lambda: generated(request(), outputs(request())[:2], None),
    "no connection": lambda: refused(request(), None, grpc.StatusCode.UNAVAILABLE),
    "our deadline": lambda: refused(request(), None, grpc.StatusCode.DEADLINE_EXCEEDED),
    "broken bytes": lambda: refused(b"\xff", None, grpc.StatusCode.INTERNAL),
    "a method of nobody": lambda: refused(request(), None, grpc.StatusCode.UNIMPLEMENTED, method="/a/b"),
    "a large request": lambda: refused(
        request(token_ids=[1] * 99999), None, grpc.StatusCode.RESOURCE_EXHAUSTED
    ),
    "an event": lambda: generated(
        request(annotations=["made.note"]), [NOTE, *outputs(request(annotations=["made.note"]))]
    ),
    "a handle": lambda: frames(ONE, [frame(1, *outputs(request()), accepted="r-1")]),
    "a handle that is used again": lambda: frames(
        [*ONE, *ONE], [frame(1, *outputs(request()), accepted="r-1")] * 2
    ),
    "a handle that is refused": lambda: frames(
        ONE, [frame(1, status(pb.ErrorDetail(reason=CONTEXT), grpc.StatusCode.INVALID_ARGUMENT))]
    ),
    "rows of frames": lambda: frames(
        ONE,
        [
            frame(1, accepted="r-1"),
            pb.GenerateMultiplexedResponse(
                step=2, handles=[1], token_counts=[3], first_output_positions=[0], token_ids=[11, 12, 13]
            ),
            frame(1, outputs(request())[-1], step=3),
        ],
    ),
    "an answer of this life": lambda: (generated(request(), outputs(request())), of_life(LIFE)),
    "a load": lambda: told(load(running=4, kv_blocks_used=8)),
    "a watch": lambda: watched(0.1),
    "outcomes": lambda: aborted("a", "b"),
    "facts": lambda: called("DiscoveryService.GetEngineInfo", pb.GetEngineInfoRequest(), INFO),
    "vectors": lambda: embedded(4, 4),
    "files": lambda: tokenizer(lambda pieces: None),
    "no files": lambda: tokenizer(lambda pieces: pieces.__delitem__(slice(1, None)), DIGEST),
    "blocks": lambda: cached(stored(7), stored(8), stored(9)),
    "an engine behind a proxy": lambda: (refused(request(), None), pb.GetEngineInfoResponse()),
}
"""What is right, or not to be judged."""


@breaks("the_server_lives_on", "an answer of another life")
def _() -> Broken:
    return generated(request(), outputs(request())), of_life("another")


@breaks("the_server_lives_on", "a load of another life")
def _() -> Broken:
    return told(load(engine_lifetime_id="life-2")), of_life(LIFE)


@breaks("the_server_lives_on", "a handle that was accepted in another life")
def _() -> Broken:
    return frames(ONE, [frame(1, *outputs(request()), accepted="r-1")]), of_life("another")


# -- what may not be accepted

for _name, _wrong, _asked in (
    ("prompts_are_needed", "no prompt", {"token_ids": []}),
    ("ids_are_checked", "a stop id beyond the vocabulary", {"stop_token_ids": [128]}),
    ("ids_are_checked", "a bias beyond the vocabulary", {"logit_bias": [pb.LogitBias(token_id=999)]}),
    ("numbers_are_checked", "no number", {"temperature": float("nan")}),
    ("ranges_are_checked", "an empty nucleus", {"top_p": 0.0}),
    ("the_number_of_choices_is_checked", "more than there may be", {"n": 129}),
    ("the_number_of_alternatives_is_checked", "more than there may be", {"logprobs": 21}),
):
    breaks(_name, _wrong)(lambda asked=_asked: generated(request(**asked), outputs(request())))  # type: ignore[misc]

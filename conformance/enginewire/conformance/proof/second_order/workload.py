"""What is asked of a server to see whether a change of it shows: requests with any mix of options.

The same each time. Nothing here is taken from the checks, so that what they are blind to may show.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.reference.settings import ANNOTATIONS
from enginewire.conformance.wire.stream import num_choices

VOCABULARY: Final = 128
EOS: Final = 2
WINDOW: Final = 2048
PROMPTS: Final = tuple(
    tuple(random.Random(length).choices(range(3, VOCABULARY), k=length)) for length in (1, 8, 17, 40, 70)
)

Draw = random.Random
Change = Callable[[pb.PreprocessedRequest, Draw], None]


def requests(name: str, count: int) -> Iterator[pb.GenerateRequest]:
    """So many good requests; `name` makes their ids, and draws others."""
    draw = Draw(name)
    for number in range(count):
        yield request(f"{name}-{number}", draw)


def request(request_id: str, draw: Draw) -> pb.GenerateRequest:
    """A good request with a mix of options, seeded."""
    body = pb.PreprocessedRequest(token_ids=draw.choice(PROMPTS), annotations=_some(draw, 0.1, _annotations))
    for part in (_stops, _samples, _tells, _goes_on, _goes_somewhere):
        part(body, draw)
    return pb.GenerateRequest(request_id=request_id, request=body)


def wrong_requests(name: str) -> Iterator[pb.GenerateRequest]:
    """Requests that have to be refused: each has one mistake, beside a mix of options."""
    draw = Draw(name)
    for number, mistake in enumerate(MISTAKES * 4):
        wrong = request(f"{name}-{number}", draw)
        mistake(wrong.request, draw)
        yield wrong
    for number, (request_id, revision) in enumerate((("a b", 0), ("", 0), ("x" * 129, 0), ("y", 9999)) * 4):
        wrong = request(f"{name}-id-{number}", draw)
        wrong.request_id, wrong.client_revision = request_id, revision
        yield wrong


def _some(draw: Draw, chance: float, make: Callable[[], list[str]]) -> list[str]:
    return make() if draw.random() < chance else []


def _annotations() -> list[str]:
    return [f"{ANNOTATIONS[0]}:it", "nobody.knows:this"]


def _ids(draw: Draw, count: int) -> list[int]:
    return draw.sample(range(3, VOCABULARY), count)


def _stops(body: pb.PreprocessedRequest, draw: Draw) -> None:
    conditions = body.stop_conditions
    conditions.max_tokens = draw.choice((1, 2, 5, 9, 9, 13, 13, 40))
    conditions.ignore_eos = draw.random() < 0.4
    if draw.random() < 0.35:
        conditions.min_tokens = draw.randint(1, conditions.max_tokens)
    for name in ("stop_token_ids", "stop_token_ids_visible", "stop_token_ids_hidden"):
        if draw.random() < 0.25:
            getattr(conditions, name).extend(_ids(draw, draw.choice((1, 12, 30))))
    if draw.random() < 0.25:
        body.eos_token_ids.extend(_ids(draw, draw.choice((1, 12, 30))))
    if draw.random() < 0.2:
        conditions.stop.extend(draw.sample(["a", "e", "th", "B", "0", "xyz"], 3))


def _samples(body: pb.PreprocessedRequest, draw: Draw) -> None:
    options = body.sampling_options
    options.seed = draw.randrange(1000)
    if draw.random() < 0.8:
        options.temperature = draw.choice((0.0, 0.0, 0.7, 1.0, 1.6))
    for name, values in (
        ("top_k", (1, 3, 20)),
        ("top_p", (0.2, 0.9)),
        ("min_p", (0.05, 0.3)),
        ("presence_penalty", (-1.0, 2.0)),
        ("frequency_penalty", (-1.0, 2.0)),
        ("repetition_penalty", (0.7, 1.9)),
    ):
        if draw.random() < 0.15:
            setattr(options, name, draw.choice(values))
    if draw.random() < 0.35:
        options.n = draw.choice((2, 3))
    if draw.random() < 0.15:
        biased = _ids(draw, draw.choice((1, 20)))
        options.logit_bias.extend(pb.LogitBias(token_id=token, bias=draw.choice((-9, 6))) for token in biased)
    if draw.random() < 0.15:
        options.allowed_token_ids.extend(_ids(draw, 30))
    elif draw.random() < 0.15:
        words = [[token] for token in _ids(draw, draw.choice((1, 40)))]
        options.bad_words_token_ids.extend(pb.TokenSequence(token_ids=word) for word in words)
    elif draw.random() < 0.08:
        options.guided_decoding.choice.choices.extend(["yes", "no"])
        body.ClearField("stop_conditions")
        body.stop_conditions.max_tokens = 9


def _tells(body: pb.PreprocessedRequest, draw: Draw) -> None:
    options = body.output_options
    if draw.random() < 0.3:
        options.logprobs = draw.choice((0, 1, 4))
        if draw.random() < 0.4:
            options.logprob_token_ids.extend(_ids(draw, draw.choice((1, 20))))
    if draw.random() < 0.1:
        options.prompt_logprobs = draw.choice((0, 2))
    if draw.random() < 0.35:
        options.stream_interval = draw.choice((1, 3, 4))


def _goes_on(body: pb.PreprocessedRequest, draw: Draw) -> None:
    """Some choices have tokens already, and one may be over."""
    longest = body.stop_conditions.max_tokens
    if longest < 5 or body.sampling_options.HasField("guided_decoding") or draw.random() < 0.7:
        return
    body.resume.attempt = 1
    count = num_choices(body)
    for index in range(draw.randint(1, count)):
        told = pb.ResumedChoice(index=index, generated_token_ids=_ids(draw, draw.randint(1, longest - 1)))
        if body.output_options.HasField("logprobs"):
            told.cum_log_probs = -2.5
        told.finished = index + 1 < count and draw.random() < 0.3
        body.resume.choices.append(told)


def _goes_somewhere(body: pb.PreprocessedRequest, draw: Draw) -> None:
    if draw.random() < 0.1:
        body.routing.priority = draw.choice((-1, 2))
    if draw.random() < 0.1:
        body.routing.lora_name = "alpha"
    if draw.random() < 0.15:
        body.cache_salt = draw.choice(("salt", "pepper"))
    if draw.random() < 0.1:
        body.bypass_prefix_cache = True
    if draw.random() < 0.05:
        body.is_probe = True


def _set(path: str, value: object) -> Change:
    def mistake(body: pb.PreprocessedRequest, draw: Draw) -> None:
        *parents, name = path.split(".")
        owner = body
        for parent in parents:
            owner = getattr(owner, parent)
        if isinstance(value, list):
            del getattr(owner, name)[:]
            getattr(owner, name).extend(value)
        else:
            setattr(owner, name, value)

    return mistake


def _twice(body: pb.PreprocessedRequest, draw: Draw) -> None:
    del body.resume.choices[:]
    body.resume.choices.extend([pb.ResumedChoice(generated_token_ids=[5])] * 2)


def _above(body: pb.PreprocessedRequest, draw: Draw) -> None:
    body.stop_conditions.min_tokens = body.stop_conditions.max_tokens + 1


def _nothing_left(body: pb.PreprocessedRequest, draw: Draw) -> None:
    body.sampling_options.ClearField("allowed_token_ids")
    body.sampling_options.ClearField("bad_words_token_ids")
    body.sampling_options.allowed_token_ids.append(7)
    body.sampling_options.bad_words_token_ids.add(token_ids=[7])


def _too_late(body: pb.PreprocessedRequest, draw: Draw) -> None:
    """Nothing is left to choose from the second token on."""
    _nothing_left(body, draw)
    body.sampling_options.bad_words_token_ids[0].token_ids[:] = [7, 7]


MISTAKES: Final[tuple[Change, ...]] = (
    _set("token_ids", []),
    _set("token_ids", [5, VOCABULARY]),
    _set("token_ids", [5] * WINDOW),
    _set("model", "no-such-model"),
    _set("routing.lora_name", "no-such-adapter"),
    _set("routing.dp_rank", 3),
    _set("prefill_result.handoff.host", "h"),
    _set("stop_conditions.stop_token_ids", [VOCABULARY]),
    _set("stop_conditions.stop_token_ids", [5] * 257),
    _set("stop_conditions.stop_token_ids_hidden", [2**31]),
    _set("stop_conditions.max_tokens", 0),
    _set("stop_conditions.max_thinking_tokens", 3),
    _set("eos_token_ids", [5, VOCABULARY + 9]),
    _set("sampling_options.temperature", math.nan),
    _set("sampling_options.temperature", -0.5),
    _set("sampling_options.top_p", 0.0),
    _set("sampling_options.top_p", 1.5),
    _set("sampling_options.top_k", VOCABULARY + 1),
    _set("sampling_options.min_p", 1.5),
    _set("sampling_options.presence_penalty", 2.5),
    _set("sampling_options.repetition_penalty", math.inf),
    _set("sampling_options.n", 9),
    _set("sampling_options.best_of", 2),
    _set("sampling_options.use_beam_search", True),
    _set("sampling_options.logit_bias", [pb.LogitBias(token_id=5, bias=101)]),
    _set("sampling_options.logit_bias", [pb.LogitBias(token_id=5)] * 2),
    _set("sampling_options.bad_words_token_ids", [pb.TokenSequence()]),
    _set("sampling_options.guided_decoding.regex", "("),
    _set("output_options.logprobs", 9),
    _set("output_options.prompt_logprobs", 9),
    _set("output_options.logprob_token_ids", [VOCABULARY]),
    _set("extra_args", b"{"),
    _twice,
    _above,
    _nothing_left,
    _too_late,
)
"""What no server may accept, and what fails later."""

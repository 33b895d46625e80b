"""Exchanges in which nothing is wrong, or nothing can be judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from enginewire import v1 as pb
from enginewire.conformance.wire.exchange import Exchange
from tests.conformance.running.monitor.cases.calls import aborted, embedded
from tests.conformance.running.monitor.cases.failures import CONTEXT
from tests.conformance.running.monitor.cases.frames import ONE, PASSED, timed
from tests.conformance.running.monitor.cases.load import load, told, watched
from tests.conformance.running.monitor.cases.register import CANCELLED, NOTE, STOP, TWO, Broken, of_life
from tests.conformance.running.monitor.cases.streams import DIGEST, cached, stored, tokenizer
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

STOPPED = request(
    stop_token_ids=[40],
    max_tokens=2,
    resume=pb.Resume(choices=[pb.ResumedChoice(generated_token_ids=[8, 40])]),
)
MISSING = pb.LLMEngineOutput(
    first_output_position=2,
    finish_reason=STOP,
    stop_match=pb.StopMatch(token_id=40),
    completion_usage=pb.CompletionUsage(
        prompt_tokens=len(STOPPED.request.token_ids),
        completion_tokens=2,
        total_tokens=len(STOPPED.request.token_ids) + 2,
    ),
)

FORBIDDING: dict[str, Any] = {
    "allowed_token_ids": [*TWO[0], *TWO[1]],
    "bad_words_token_ids": [pb.TokenSequence(token_ids=[12, 11]), pb.TokenSequence(token_ids=[5])],
}

MASKING = changed(
    capabilities=pb.Capabilities(allowed_token_ids=True, bad_words=True, max_thinking_tokens=True)
)

RIGHT: dict[str, Callable[[], Broken | Exchange]] = {
    "an answer": lambda: generated(request(), outputs(request())),
    "two choices with rows": lambda: generated(
        request(n=2, logprobs=2), outputs(request(n=2, logprobs=2), TWO)
    ),
    "a mask and bad words": lambda: (
        generated(request(n=2, **FORBIDDING), outputs(request(n=2, **FORBIDDING), TWO)),
        MASKING,
    ),
    "the end of a thought that no mask allows": lambda: (
        generated(request(max_thinking_tokens=2, allowed_token_ids=[11]), outputs(request())),
        MASKING,
    ),
    "runs": lambda: generated(request(logprobs=1), outputs(request(logprobs=1), run=3)),
    "a stop": lambda: generated(request(stop_token_ids=[40, 12]), outputs(request(), ((11, 12),), (STOP,))),
    "a stop that was handed in": lambda: generated(STOPPED, [MISSING]),
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
    "a handle whose time passes": lambda: timed(3, frame(1, accepted="r-1"), frame(1), frame(1, PASSED)),
    "a handle whose stream is over": lambda: timed(9, frame(1, accepted="r-1"), frame(1, PASSED), stream=2),
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

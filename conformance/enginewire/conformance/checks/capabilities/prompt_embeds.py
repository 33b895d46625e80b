"""INF-14, and INF-09 for prompts that are embeddings."""

from __future__ import annotations

import random
import struct
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.running.registry import SHAPE, check
from enginewire.conformance.session.context import INVALID, Context, require_refusal
from enginewire.conformance.session.requests import Value
from enginewire.conformance.wire.stream import Choice
from enginewire.conformance.wire.violation import expect, expect_equal

ROWS: Final = 40
"""More than a block of most caches."""
TOKENS: Final = 8


@check("INF-14", needs=SHAPE)
async def rows_have_the_width_of_the_model(ctx: Context) -> None:
    """One number more in each row, and one less."""
    width = ctx.config.hidden_size
    expect(width, "prompt_embeds is advertised without EngineConfig.hidden_size", expected="a width")
    for other in (width + 1, width - 1):
        exchange = await ctx.refused(ctx.request(token_ids=[], prompt_embeds=_embeddings(ctx, 0, other)))
        require_refusal(exchange, INVALID, "prompt_embeds.shape")


@check(
    "INF-09", variant="prompt-embeds", gate="prompt_embeds", needs=(*SHAPE, "INF-14", "USE-02"), alone=True
)
async def embeddings_are_the_prompt(ctx: Context) -> None:
    """Three prompts as long as each other, then each again, past the cache."""
    prompts = [_embeddings(ctx, number, ctx.config.hidden_size) for number in range(3)]
    answers = [await _answer(ctx, prompt) for prompt in prompts]
    seen = {(*answer.tokens, *_values(answer)) for answer in answers}
    expect(len(seen) > 1, "different embeddings have the same answer", seen=answers[0].tokens)
    for prompt, before in zip(prompts, answers, strict=True):
        again = await _answer(ctx, prompt, bypass_prefix_cache=True)
        message = "the answer to a prompt of embeddings is another one past the cache"
        expect_equal(again.tokens, before.tokens, message)


def _embeddings(ctx: Context, number: int, width: int) -> pb.Tensor:
    """Numbers drawn from the seed of the run."""
    rng, rows = random.Random(f"{ctx.session.options.seed}/{number}"), len(ctx.prompt(ROWS))
    data = struct.pack(f"<{rows * width}f", *(rng.gauss(0, 1) for _ in range(rows * width)))
    return pb.Tensor(data_type=pb.DATA_TYPE_FLOAT32, shape=[rows, width], data=data)


async def _answer(ctx: Context, prompt: pb.Tensor, **changes: Value) -> Choice:
    """With log-probabilities where there are any: a model may be sure of its tokens whatever it is given."""
    options: dict[str, Value] = {"logprobs": 0} if ctx.capabilities.logprobs else {}
    options |= {"token_ids": [], "prompt_embeds": prompt, "max_tokens": ctx.tokens(TOKENS), **changes}
    stream = await ctx.generate(ctx.request(**options))
    expect_equal(stream.usage.prompt_tokens, prompt.shape[0], "prompt_tokens are not the rows of the prompt")
    return stream.choice


def _values(answer: Choice) -> list[float]:
    return [value for output in answer.outputs for value in output.logprobs.token_logprobs]

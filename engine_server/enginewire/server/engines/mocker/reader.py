"""From the wire's request to the mocker's, and what the mocker says about itself.

The shell has validated the request against `engine_config`; only what needs the engine's state is
checked here. Knows nothing about steps or queues.
"""

from __future__ import annotations

from random import Random

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.engines.mocker.model import PANGRAM, Echo, Sampler, Sampling
from enginewire.server.engines.mocker.options import MockerOptions
from enginewire.server.engines.mocker.sequence import CHUNK, Request, Sequence, StopRules, WantedLogprobs
from enginewire.server.engines.mocker.tokenizer import BOS, EOS
from enginewire.server.failures import ContextExceeded, InvalidRequest, KvExhausted
from enginewire.server.handoff.requests import (
    ENGINE_ROLES,
    hands_over,
    is_handed_over,
    prompt_digest,
    prompt_of,
)

MAX_N = 64
MAX_LOGPROBS = 20
ECHO = "echo"
"""The annotation that is answered, before the first token, with what is behind its colon."""


def engine_config(options: MockerOptions) -> pb.EngineConfig:
    """Everything `start` reports."""
    return pb.EngineConfig(
        model=options.model,
        served_model_name=options.served_model_name,
        aliases=options.aliases,
        context_length=options.window,
        kv_cache_block_size=options.block_size,
        total_kv_blocks=options.num_kv_blocks,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        vocab_size=options.vocab_size,
        eos_token_ids=[EOS],
        role=ENGINE_ROLES[options.role],
        capabilities=_capabilities(),
        limits=pb.Limits(max_n=min(MAX_N, options.max_num_seqs), max_logprobs=MAX_LOGPROBS),
    )


def _capabilities() -> pb.Capabilities:
    return pb.Capabilities(
        seed=True,
        multiple_choices=True,
        min_p=True,
        logprobs=True,
        selected_logprobs=True,
        resume=True,
        batch_invariant=True,
        lora=True,
        embeddings=True,
        tokenizer=True,
        annotations=[ECHO],
        default_sampling=pb.SamplingDefaults(temperature=0.0, top_p=1.0, repetition_penalty=1.0),
    )


class RequestReader:
    """Turns messages into requests; draws the seeds that callers leave out."""

    def __init__(self, options: MockerOptions) -> None:
        self._options = options
        self._random = Random(options.seed)

    def read(self, message: pb.PreprocessedRequest, context: GenerateContext, adapter: str = "") -> Request:
        """Raise ContextExceeded, KvExhausted or InvalidRequest for what can never run.

        `adapter` is the digest of the one that is named.
        """
        is_prompt_only = hands_over(message, self._options.role)
        if is_prompt_only:
            message = prompt_of(message)
        n = message.sampling_options.n if message.sampling_options.HasField("n") else 1
        resumed = {choice.index: choice for choice in message.resume.choices}
        unfinished = [i for i in range(n) if i not in resumed or not resumed[i].finished]
        if not unfinished:
            raise InvalidRequest("resume.choices: must leave a choice to generate", field="resume.choices")
        max_tokens = self._max_tokens(message, len(unfinished))
        request = Request(
            context=context,
            prompt_tokens=len(message.token_ids),
            stop=_stop_rules(message, max_tokens),
            echo=self._echo(message),
            logprobs=_wanted_logprobs(message.output_options),
            blocks_per_sequence=self._blocks(len(message.token_ids) + max_tokens),
            completion_tokens=sum(len(c.generated_token_ids) for c in resumed.values() if c.finished),
            events=_events(message, context),
        )
        if is_prompt_only:
            request.prompt_digest = prompt_digest(message, adapter)
        if is_handed_over(message, self._options.role):
            request.num_handed_over = request.prompt_tokens - 1
            if message.prefill_result.HasField("prompt_tokens_details"):
                request.prompt_tokens_details = message.prefill_result.prompt_tokens_details
        sampling = self._sampling(message.sampling_options)
        for i in unfinished:
            sampler = Sampler(request.echo, sampling, i)
            request.sequences.append(Sequence(request, i, sampler, resumed.get(i, pb.ResumedChoice())))
        return request

    def _max_tokens(self, message: pb.PreprocessedRequest, choices: int) -> int:
        """Output tokens per choice: as many as were asked for, or as many as fit."""
        prompt, stop, context = len(message.token_ids), message.stop_conditions, self._options.window
        if prompt >= context:
            text = f"token_ids: {prompt} tokens leave no room in a context of {context}"
            raise ContextExceeded(text, field="token_ids")
        window = context - prompt
        room = self._options.num_kv_blocks // choices * self._options.block_size - prompt
        wanted = 1 if message.is_probe else min(window, max(room, 1))
        if stop.HasField("max_tokens"):
            wanted = min(stop.max_tokens, window)
        if wanted > room:
            raise KvExhausted(f"the request needs {prompt + wanted} tokens of KV cache per choice")
        return wanted

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._options.block_size)

    def _echo(self, message: pb.PreprocessedRequest) -> Echo:
        script, prompt = self._options.script, tuple(message.token_ids)
        answer = script.get(prompt) or script.get(None)
        period = answer or [token_id for token_id in prompt if token_id not in (BOS, EOS)] or PANGRAM
        # An adapter makes itself known: its name comes first.
        return Echo(
            [*message.routing.lora_name.encode(), *period, EOS], self._options.vocab_size, unrolled=CHUNK
        )

    def _sampling(self, options: pb.SamplingOptions) -> Sampling:
        return Sampling(
            temperature=options.temperature,
            top_p=options.top_p if options.HasField("top_p") else 1.0,
            top_k=max(options.top_k, 0),
            min_p=options.min_p,
            seed=options.seed if options.HasField("seed") else self._random.getrandbits(64),
        )


def _events(message: pb.PreprocessedRequest, context: GenerateContext) -> list[pb.EngineEvent]:
    asked = [annotation.partition(":") for annotation in message.annotations]
    return [
        pb.EngineEvent(event=ECHO, id=context.request_id, comment=[value])
        for key, _, value in asked
        if key == ECHO
    ]


def _stop_rules(message: pb.PreprocessedRequest, max_tokens: int) -> StopRules:
    stop = message.stop_conditions
    eos = {*(message.eos_token_ids or [EOS]), *stop.stop_token_ids_hidden}
    return StopRules(
        max_tokens=max_tokens,
        min_tokens=stop.min_tokens,
        eos_token_ids=frozenset() if stop.ignore_eos else frozenset(eos),
        stop_token_ids=frozenset((*stop.stop_token_ids, *stop.stop_token_ids_visible)),
    )


def _wanted_logprobs(options: pb.OutputOptions) -> WantedLogprobs | None:
    if not options.HasField("logprobs") and not options.logprob_token_ids:
        return None
    return WantedLogprobs(options.logprobs, tuple(options.logprob_token_ids))

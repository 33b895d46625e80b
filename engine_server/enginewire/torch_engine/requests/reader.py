"""From the wire's request to the engine's: defaults filled in, and checked what only this engine knows.

The shell has validated it before, from what the engine advertises. Knows nothing about torch or queues.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence as Seq
from random import Random

from enginewire import v1 as pb
from enginewire.server.engines.answer import with_defaults
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import KvExhausted, Unsupported
from enginewire.server.handoff.requests import hands_over, is_handed_over, prompt_digest, prompt_of
from enginewire.torch_engine.folder.generation_config import GenerationDefaults
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.requests.cache_chain import chain_root
from enginewire.torch_engine.requests.candidates import read_beams, read_best_of
from enginewire.torch_engine.requests.limits import RequestLimits, check
from enginewire.torch_engine.requests.params import Guide, SamplingParams, StopRules
from enginewire.torch_engine.requests.pooling import Pooling
from enginewire.torch_engine.requests.prompt_embeds import PromptEmbeds, read_prompt_embeds
from enginewire.torch_engine.requests.scores import Beam, LogprobsWanted, PromptScores
from enginewire.torch_engine.requests.sequence import Request, Sequence, Urgency
from enginewire.torch_engine.requests.thinking import ThinkingRules

BLANKS = re.compile(r"(?:(?: |\\[ntr]|\[(?: |\\[ntr])+\])(?:[?*+]|\{\d{1,3}(?:,\d{0,3})?\})?){0,8}")
"""Expressions for white space that is JSON's, whatever they say about it."""
JSON_KINDS = ("json_schema", "json_object")
MIN_DIVISOR = 0.01
"""Temperatures (other than 0) and repetition penalties below it are raised to it: dividing a logit
by less can overflow, and a distribution that sharp is greedy anyway."""
CLASS_SECONDS = 60.0
MAX_CLASSES = 60
"""A request of priority p counts as having arrived 60 s × p later. So a more urgent class overtakes, but
nobody waits for ever: who arrives more than two hours later overtakes no one, whatever the priorities."""


class RequestReader:
    """Turns messages into `Request`s; draws the seeds that callers leave out."""

    def __init__(self, limits: RequestLimits, defaults: GenerationDefaults, seed: int | None) -> None:
        self._limits = limits
        self._eos_token_ids = defaults.eos_token_ids
        self._sampling_defaults = defaults.sampling()
        self._random = Random(seed)
        self._serial = 0

    def read(
        self,
        message: pb.PreprocessedRequest,
        context: GenerateContext,
        now: float,
        adapter: Adapter | None = None,
    ) -> Request:
        """Raise InvalidRequest, KvExhausted or Unsupported for what can never run here."""
        is_prompt_only = hands_over(message, self._limits.role)
        is_whole = is_prompt_only or message.sampling_options.use_beam_search
        if is_prompt_only:
            message = prompt_of(message)
        embeds = self._prompt_embeds(message)
        prompt = list(message.token_ids) if embeds is None else [0] * embeds.num_tokens
        self._serial += 1
        request = Request(
            context=context,
            prompt_token_ids=prompt,
            sampling=self._sampling(message.sampling_options),
            stop=self._stop(message, len(prompt), is_whole=is_whole),
            urgency=self._urgency(message.routing, now),
            logprobs=self._logprobs(message.output_options),
            cache_root=self._cache_root(message, adapter),
            guide=read_guide(message.sampling_options),
            adapter=adapter,
            hands_over=is_prompt_only,
            prompt_digest=prompt_digest(message, adapter.digest if adapter else "") if is_prompt_only else "",
            prompt_embeds=embeds,
        )
        if is_handed_over(message, self._limits.role):
            request.num_cached_tokens = _cached_tokens_before(message)
        request.beams = read_beams(message)
        request.best_of = None if request.beams else read_best_of(message)
        if request.best_of and request.logprobs is None:
            request.logprobs = LogprobsWanted(0)  # candidates are compared by them
        request.thinking = self._thinking(message, message.token_ids)
        request.sequences = self._sequences(message, request)
        request.prompt_scores = self._prompt_scores(message.output_options, request)
        return request

    def read_input(
        self,
        token_ids: Seq[int],
        pooling: Pooling,
        context: GenerateContext,
        now: float,
        adapter: Adapter | None = None,
    ) -> Request:
        """One input to embed. It stays out of the prefix cache. Raises KvExhausted for what can never run."""
        count, most = len(token_ids), self._limits.max_sequence_tokens(is_whole=False)
        if count > most:
            raise KvExhausted(
                f"token_ids: {count} tokens, the KV cache has room for {most}", field="token_ids"
            )
        self._serial += 1
        request = Request(
            context=context,
            prompt_token_ids=list(token_ids),
            sampling=SamplingParams(seed=0),
            stop=StopRules(max_total_tokens=count + 1),
            urgency=self._urgency(context.routing, now),
            pooling=pooling,
            adapter=adapter,
        )
        request.sequences = [Sequence(request, 0)]
        return request

    def _sampling(self, options: pb.SamplingOptions) -> SamplingParams:
        options = with_defaults(options, self._sampling_defaults)
        temperature = options.temperature
        return SamplingParams(
            seed=options.seed if options.HasField("seed") else self._random.getrandbits(64),
            temperature=max(temperature, MIN_DIVISOR) if temperature and not options.use_beam_search else 0.0,
            top_k=max(options.top_k, 0),
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=max(options.repetition_penalty, MIN_DIVISOR),
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            logit_bias=tuple((entry.token_id, entry.bias) for entry in options.logit_bias),
            allowed_token_ids=tuple(dict.fromkeys(options.allowed_token_ids)),
            bad_words=tuple(tuple(word.token_ids) for word in options.bad_words_token_ids),
        )

    def _stop(self, message: pb.PreprocessedRequest, num_prompt: int, *, is_whole: bool) -> StopRules:
        stop, limits = message.stop_conditions, self._limits
        eos = {*(message.eos_token_ids or self._eos_token_ids), *stop.stop_token_ids_hidden}
        stops = {*stop.stop_token_ids, *stop.stop_token_ids_visible}
        max_tokens = stop.max_tokens if stop.HasField("max_tokens") else 1 if message.is_probe else None
        return StopRules(
            max_total_tokens=self._max_total(num_prompt, max_tokens, is_whole=is_whole),
            min_tokens=min(stop.min_tokens, limits.context_length),
            eos_token_ids=frozenset() if stop.ignore_eos else frozenset(eos),
            stop_token_ids=frozenset(stops),
        )

    def _max_total(self, num_prompt: int, max_tokens: int | None, *, is_whole: bool) -> int:
        """The last token of a choice is never computed, so it needs no place in the cache."""
        context = self._limits.context_length
        places = self._limits.max_sequence_tokens(is_whole=is_whole) + 1
        wanted = context if max_tokens is None else min(num_prompt + max_tokens, context)
        # Without max_tokens the caller takes what there is: the cache is then the end of the context.
        if num_prompt >= places or (max_tokens is not None and wanted > places):
            raise KvExhausted(f"the request needs {wanted - 1} tokens of KV cache, there are {places - 1}")
        return min(wanted, places)

    def _logprobs(self, options: pb.OutputOptions) -> LogprobsWanted | None:
        if not options.HasField("logprobs") and not options.logprob_token_ids:
            return None
        return LogprobsWanted(options.logprobs, tuple(options.logprob_token_ids))

    def _prompt_scores(self, options: pb.OutputOptions, request: Request) -> PromptScores | None:
        if not options.HasField("prompt_logprobs"):
            return None
        is_open = not request.sequences[0].is_finished
        check("output_options.prompt_logprobs", is_open, "travels with choice 0, which has ended")
        return PromptScores(len(request.prompt_token_ids) - 1, options.prompt_logprobs)

    def _prompt_embeds(self, message: pb.PreprocessedRequest) -> PromptEmbeds | None:
        if not message.HasField("prompt_embeds"):
            return None
        assert self._limits.embedding_width is not None, "prompt_embeds is advertised with a width only"
        field = "output_options.prompt_logprobs"
        if message.output_options.HasField("prompt_logprobs"):
            raise Unsupported(f"{field}: embeddings are no tokens to have a probability", field=field)
        return read_prompt_embeds(message.prompt_embeds, self._limits.embedding_width)

    def _thinking(self, message: pb.PreprocessedRequest, prompt: Seq[int]) -> ThinkingRules | None:
        tokens, stop = self._limits.thinking, message.stop_conditions
        field = "stop_conditions.max_thinking_tokens"
        limit = stop.max_thinking_tokens if stop.HasField("max_thinking_tokens") else None
        if limit is not None and message.sampling_options.HasField("guided_decoding"):
            raise Unsupported(f"{field}: not supported together with a grammar", field=field)
        return ThinkingRules(tokens, tokens.is_open_after(prompt), limit) if tokens else None

    def _urgency(self, routing: pb.RoutingHints, now: float) -> Urgency:
        classes = min(max(routing.priority, -MAX_CLASSES), MAX_CLASSES)
        moment = now - routing.priority_jump + CLASS_SECONDS * classes
        return moment, routing.priority, self._serial

    def _cache_root(self, message: pb.PreprocessedRequest, adapter: Adapter | None) -> bytes | None:
        stays_out = message.bypass_prefix_cache or message.is_probe or not self._limits.prefix_caching
        # The cache knows blocks by their token ids.
        stays_out |= message.HasField("prompt_embeds")
        return None if stays_out else chain_root(message.cache_salt, adapter.identity if adapter else "")

    def _sequences(self, message: pb.PreprocessedRequest, request: Request) -> list[Sequence]:
        options = message.sampling_options
        n = max(options.n if options.HasField("n") else 1, options.best_of)
        resumed = {choice.index: choice for choice in message.resume.choices}
        if request.beams:
            return [Sequence(request, 0, beam=Beam())]
        return [self._sequence(request, i, resumed.get(i)) for i in range(n)]

    def _sequence(self, request: Request, index: int, resumed: pb.ResumedChoice | None) -> Sequence:
        if resumed is None:
            return Sequence(request, index)
        generated = list(resumed.generated_token_ids)
        total = len(request.prompt_token_ids) + len(generated)
        fits = resumed.finished or total <= request.stop.max_total_tokens
        check("resume.choices.generated_token_ids", fits, "must not be longer than the output may be")
        sequence = Sequence(request, index, generated)
        sequence.cum_log_prob = resumed.cum_log_probs
        sequence.is_finished = resumed.finished
        return sequence


def read_guide(options: pb.SamplingOptions) -> Guide | None:
    """The grammar a request asks for; raises Unsupported for what no grammar library here can do."""
    if not options.HasField("guided_decoding"):
        return None
    guided = options.guided_decoding
    field = "sampling_options.guided_decoding"
    kind = guided.WhichOneof("guide")
    assert kind is not None, "a validated request has a guide"
    whitespace = guided.whitespace_pattern if guided.HasField("whitespace_pattern") else None
    if whitespace is not None and (kind not in JSON_KINDS or not BLANKS.fullmatch(whitespace)):
        field = f"{field}.whitespace_pattern"
        raise Unsupported(f"{field}: only blanks that JSON allows, beside a guide for JSON", field=field)
    if kind == "json_object":
        return Guide(kind, "", guided.backend, whitespace)
    text = json.dumps(list(guided.choice.choices)) if kind == "choice" else getattr(guided, kind)
    return Guide(kind, text, guided.backend, whitespace)


def _cached_tokens_before(message: pb.PreprocessedRequest) -> int:
    """What the prefill engine found in its cache: the usage counts the prompt as it was computed there."""
    if message.bypass_prefix_cache:
        return 0
    return min(message.prefill_result.prompt_tokens_details.cached_tokens, len(message.token_ids))

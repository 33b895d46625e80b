"""From the wire's request to the engine's: defaults filled in, everything checked that could hurt.

The shell validates first, from the engine's advertised limits; the checks here only make sure
that nothing a caller sends can break a batch. Knows nothing about torch or queues.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence as Seq
from math import isfinite
from random import Random

from enginewire import v1 as pb
from enginewire.server.engines.interface import GenerateContext
from enginewire.server.failures import ContextExceeded, InvalidRequest, KvExhausted, Unsupported
from enginewire.server.handoff.requests import hands_over, is_handed_over, prompt_digest, prompt_of
from enginewire.torch_engine.folder.generation_config import GenerationDefaults
from enginewire.torch_engine.requests.adapter import Adapter
from enginewire.torch_engine.requests.beam import Beam
from enginewire.torch_engine.requests.cache_chain import chain_root
from enginewire.torch_engine.requests.candidates import read_beams, read_best_of
from enginewire.torch_engine.requests.field_checks import check, number_in
from enginewire.torch_engine.requests.limits import RequestLimits
from enginewire.torch_engine.requests.params import Guide, SamplingParams, StopRules
from enginewire.torch_engine.requests.pooling import Pooling
from enginewire.torch_engine.requests.prompt_embeds import PromptEmbeds, read_prompt_embeds
from enginewire.torch_engine.requests.scores import LogprobsWanted, PromptScores
from enginewire.torch_engine.requests.sequence import Request, Sequence, Urgency
from enginewire.torch_engine.requests.thinking import ThinkingRules

MIN_DIVISOR = 0.01
"""Temperatures (other than 0) and repetition penalties below it are raised to it: dividing a logit
by less can overflow, and a distribution that sharp is greedy anyway."""
SMALLEST = 1e-45
"""Below every positive float32: the open end of a range."""
CLASS_SECONDS = 60.0
MAX_CLASSES = 60
"""A request of priority p counts as having arrived 60 s × p later. So a more urgent class overtakes, but
nobody waits for ever: who arrives more than two hours later overtakes no one, whatever the priorities."""


class RequestReader:
    """Turns messages into `Request`s; draws the seeds that callers leave out."""

    def __init__(self, limits: RequestLimits, defaults: GenerationDefaults, seed: int | None) -> None:
        self._limits = limits
        self._defaults = defaults
        self._random = Random(seed)
        self._serial = 0

    def read(
        self,
        message: pb.PreprocessedRequest,
        context: GenerateContext,
        now: float,
        adapter: Adapter | None = None,
    ) -> Request:
        """Raise InvalidRequest, ContextExceeded or KvExhausted for what can never run."""
        is_prompt_only = hands_over(message, self._limits.role)
        is_whole = is_prompt_only or message.sampling_options.use_beam_search
        if is_prompt_only:
            message = prompt_of(message)
        embeds = self._prompt_embeds(message)
        prompt = list(message.token_ids) if embeds is None else [0] * embeds.num_tokens
        if not prompt:
            raise InvalidRequest("token_ids: must not be empty", field="token_ids")
        self._check_ids(prompt, "token_ids")
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
        default = self._defaults
        temperature = number_in(options, "temperature", default.temperature, 0.0, 100.0)
        repetition = number_in(options, "repetition_penalty", default.repetition_penalty, SMALLEST, 10.0)
        bias = tuple((entry.token_id, entry.bias) for entry in options.logit_bias)
        words = tuple(tuple(word.token_ids) for word in options.bad_words_token_ids if word.token_ids)
        allowed = tuple(dict.fromkeys(options.allowed_token_ids))
        self._check_ids((token for token, _ in bias), "sampling_options.logit_bias")
        self._check_ids((token for word in words for token in word), "sampling_options.bad_words_token_ids")
        self._check_ids(allowed, "sampling_options.allowed_token_ids")
        in_range = all(-100.0 <= value <= 100.0 for _, value in bias)
        check("sampling_options.logit_bias", in_range, "must be from -100 to 100")
        return SamplingParams(
            seed=options.seed if options.HasField("seed") else self._random.getrandbits(64),
            temperature=max(temperature, MIN_DIVISOR) if temperature and not options.use_beam_search else 0.0,
            top_k=max(int(number_in(options, "top_k", default.top_k, -1, self._limits.vocab_size)), 0),
            top_p=number_in(options, "top_p", default.top_p, SMALLEST, 1.0),
            min_p=number_in(options, "min_p", default.min_p, 0.0, 1.0),
            repetition_penalty=max(repetition, MIN_DIVISOR),
            presence_penalty=number_in(options, "presence_penalty", 0.0, -2.0, 2.0),
            frequency_penalty=number_in(options, "frequency_penalty", 0.0, -2.0, 2.0),
            logit_bias=bias,
            allowed_token_ids=allowed,
            bad_words=words,
        )

    def _stop(self, message: pb.PreprocessedRequest, num_prompt: int, *, is_whole: bool) -> StopRules:
        stop, limits = message.stop_conditions, self._limits
        eos = {*(message.eos_token_ids or self._defaults.eos_token_ids), *stop.stop_token_ids_hidden}
        stops = {*stop.stop_token_ids, *stop.stop_token_ids_visible}
        self._check_ids(message.eos_token_ids, "eos_token_ids")
        self._check_ids(eos | stops, "stop_conditions")
        max_tokens = stop.max_tokens if stop.HasField("max_tokens") else 1 if message.is_probe else None
        check("stop_conditions.max_tokens", max_tokens != 0, "must be at least 1")
        fits = max_tokens is None or stop.min_tokens <= max_tokens
        check("stop_conditions.min_tokens", fits, "must not be above max_tokens")
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
        if num_prompt >= context:
            raise ContextExceeded(
                f"token_ids: {num_prompt} tokens leave no room in a context of {context}", field="token_ids"
            )
        wanted = context if max_tokens is None else min(num_prompt + max_tokens, context)
        # Without max_tokens the caller takes what there is: the cache is then the end of the context.
        if num_prompt >= places or (max_tokens is not None and wanted > places):
            raise KvExhausted(f"the request needs {wanted - 1} tokens of KV cache, there are {places - 1}")
        return min(wanted, places)

    def _logprobs(self, options: pb.OutputOptions) -> LogprobsWanted | None:
        if not options.HasField("logprobs") and not options.logprob_token_ids:
            return None
        limit = min(self._limits.max_logprobs, self._limits.vocab_size)
        check("output_options.logprobs", options.logprobs <= limit, f"must be at most {limit}")
        self._check_ids(options.logprob_token_ids, "output_options.logprob_token_ids")
        return LogprobsWanted(options.logprobs, tuple(options.logprob_token_ids))

    def _prompt_scores(self, options: pb.OutputOptions, request: Request) -> PromptScores | None:
        if not options.HasField("prompt_logprobs"):
            return None
        field, limit = "output_options.prompt_logprobs", self._limits.max_prompt_logprobs
        check(field, options.prompt_logprobs <= limit, f"must be at most {limit}")
        check(field, not request.sequences[0].is_finished, "travels with choice 0, which has ended")
        return PromptScores(len(request.prompt_token_ids) - 1, options.prompt_logprobs)

    def _prompt_embeds(self, message: pb.PreprocessedRequest) -> PromptEmbeds | None:
        if not message.HasField("prompt_embeds"):
            return None
        if self._limits.embedding_width is None:
            raise Unsupported("prompt_embeds: this model reads only token ids", field="prompt_embeds")
        check("prompt_embeds", not message.token_ids, "excludes token_ids")
        shape = message.prompt_embeds.shape
        fits = len(shape) != 2 or shape[0] < self._limits.context_length
        check("prompt_embeds.shape", fits, "exceeds the context")
        field = "output_options.prompt_logprobs"
        if message.output_options.HasField("prompt_logprobs"):
            raise Unsupported(f"{field}: embeddings are no tokens to have a probability", field=field)
        return read_prompt_embeds(message.prompt_embeds, self._limits.embedding_width)

    def _thinking(self, message: pb.PreprocessedRequest, prompt: Seq[int]) -> ThinkingRules | None:
        tokens, stop = self._limits.thinking, message.stop_conditions
        field = "stop_conditions.max_thinking_tokens"
        limit = stop.max_thinking_tokens if stop.HasField("max_thinking_tokens") else None
        if limit is not None and tokens is None:
            raise Unsupported(f"{field}: this model has no thinking tokens", field=field)
        if limit is not None and message.sampling_options.HasField("guided_decoding"):
            raise Unsupported(f"{field}: not supported together with a grammar", field=field)
        return ThinkingRules(tokens, tokens.is_open_after(prompt), limit) if tokens else None

    def _urgency(self, routing: pb.RoutingHints, now: float) -> Urgency:
        check("routing.priority_jump", isfinite(routing.priority_jump), "must be finite")
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
        limit = self._limits.max_n
        field = "best_of" if options.HasField("best_of") else "n"
        check(f"sampling_options.{field}", 1 <= n <= limit, f"must be from 1 to {limit}")
        resumed = {choice.index: choice for choice in message.resume.choices}
        fits = len(resumed) == len(message.resume.choices) and all(index < n for index in resumed)
        check("resume.choices", fits, "must name each choice below n at most once")
        if request.beams:
            return [Sequence(request, 0, beam=Beam())]
        sequences = [self._sequence(request, i, resumed.get(i)) for i in range(n)]
        check("resume.choices", any(not s.is_finished for s in sequences), "must leave a choice to generate")
        return sequences

    def _sequence(self, request: Request, index: int, resumed: pb.ResumedChoice | None) -> Sequence:
        if resumed is None:
            return Sequence(request, index)
        generated = list(resumed.generated_token_ids)
        self._check_ids(generated, "resume.choices.generated_token_ids")
        total = len(request.prompt_token_ids) + len(generated)
        fits = resumed.finished or total <= request.stop.max_total_tokens
        check("resume.choices.generated_token_ids", fits, "must not be longer than the output may be")
        sequence = Sequence(request, index, generated)
        sequence.cum_log_prob = resumed.cum_log_probs
        sequence.is_finished = resumed.finished
        return sequence

    def _check_ids(self, ids: Iterable[int], field: str) -> None:
        in_range = max(ids, default=0) < self._limits.vocab_size
        check(field, in_range, "must hold ids below the vocabulary size")


def read_guide(options: pb.SamplingOptions) -> Guide | None:
    """The grammar a request asks for, unchecked; raises for what no grammar library here can do."""
    if not options.HasField("guided_decoding"):
        return None
    guided = options.guided_decoding
    field = "sampling_options.guided_decoding"
    kind = guided.WhichOneof("guide")
    check(field, kind is not None, "must have a guide")
    assert kind is not None, "checked above"
    if guided.HasField("whitespace_pattern"):
        raise Unsupported(f"{field}.whitespace_pattern: not supported", field=f"{field}.whitespace_pattern")
    if kind == "json_object":
        return Guide(kind, "", guided.backend)
    text = json.dumps(list(guided.choice.choices)) if kind == "choice" else getattr(guided, kind)
    return Guide(kind, text, guided.backend)


def _cached_tokens_before(message: pb.PreprocessedRequest) -> int:
    """What the prefill engine found in its cache: the usage counts the prompt as it was computed there."""
    if message.bypass_prefix_cache:
        return 0
    return min(message.prefill_result.prompt_tokens_details.cached_tokens, len(message.token_ids))

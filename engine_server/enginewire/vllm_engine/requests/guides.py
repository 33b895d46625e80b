"""The grammars that requests ask for, tried by vLLM before a request is accepted."""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from enginewire import v1 as pb
from enginewire.server.failures import InvalidRequest, Unsupported
from enginewire.vllm_engine.requests.refusals import REFUSALS, first_line

if TYPE_CHECKING:
    from vllm.v1.engine.input_processor import InputProcessor

REMEMBERED: Final = 256
"""Guides that need no second trial."""
FIELD: Final = "sampling_options.guided_decoding"
OUR_KINDS: Final = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf_grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""Kinds of guides that are a text, and what vLLM calls them."""


class Guides:
    """Those that were found to be good, the latest ones."""

    def __init__(self, processor: InputProcessor) -> None:
        self._processor = processor
        self._tried: OrderedDict[bytes, StructuredOutputsParams] = OrderedDict()

    async def prepare(self, options: pb.SamplingOptions) -> None:
        """Try the guide of a request in a thread. Raises InvalidRequest or Unsupported."""
        if options.HasField("guided_decoding") and _key(options) not in self._tried:
            self._remember(options, await asyncio.to_thread(self._try, options.guided_decoding))

    def of(self, options: pb.SamplingOptions) -> StructuredOutputsParams | None:
        """The guide of a request, for one choice or more. One that was not prepared is tried here and now."""
        if not options.HasField("guided_decoding"):
            return None
        if _key(options) not in self._tried:
            self._remember(options, self._try(options.guided_decoding))
        self._tried.move_to_end(_key(options))
        return copy.copy(self._tried[_key(options)])

    def _remember(self, options: pb.SamplingOptions, guide: StructuredOutputsParams) -> None:
        self._tried[_key(options)] = guide
        while len(self._tried) > REMEMBERED:
            self._tried.popitem(last=False)

    def _try(self, guided: pb.GuidedDecoding) -> StructuredOutputsParams:
        try:
            params = SamplingParams(structured_outputs=_structured(guided))
            processor = self._processor
            params.verify(
                processor.model_config,
                processor.speculative_config,
                processor.structured_outputs_config,
                processor.tokenizer,
            )
        except REFUSALS as error:
            raise InvalidRequest(f"{FIELD}: {first_line(error)}", field=FIELD) from error
        return params.structured_outputs


def _structured(guided: pb.GuidedDecoding) -> StructuredOutputsParams:
    for name in ("backend", "whitespace_pattern"):
        if guided.HasField(name):
            raise Unsupported(f"{FIELD}.{name}: vLLM has one for the whole server", field=f"{FIELD}.{name}")
    kind = guided.WhichOneof("guide")
    assert kind is not None, "a validated request has a guide"
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "choice":
        return StructuredOutputsParams(choice=list(guided.choice.choices))
    return StructuredOutputsParams(**{OUR_KINDS[kind]: getattr(guided, kind)})


def _key(options: pb.SamplingOptions) -> bytes:
    return options.guided_decoding.SerializeToString(deterministic=True)

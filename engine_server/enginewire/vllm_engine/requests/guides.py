"""The grammars that requests ask for, tried by vLLM before a request is accepted."""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from enginewire import v1 as pb
from enginewire.server.engines.guides.coverage import (
    regex_for_xgrammar,
    schema_for_llguidance,
    schema_for_xgrammar,
    tag_for_llguidance,
    tag_for_xgrammar,
)
from enginewire.server.engines.guides.messages import first_line
from enginewire.server.engines.guides.schema import InvalidGuide
from enginewire.server.failures import InvalidRequest, Unsupported
from enginewire.vllm_engine.requests.refusals import REFUSALS

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
LIBRARIES: Final = ("xgrammar", "guidance")
"""Tried in this order where the operator has not chosen one."""
AS_FOLLOWED: Final[Mapping[tuple[str, str], Callable[[str], str]]] = {
    ("xgrammar", "json_schema"): schema_for_xgrammar,
    ("xgrammar", "regex"): regex_for_xgrammar,
    ("xgrammar", "structural_tag"): tag_for_xgrammar,
    ("guidance", "json_schema"): schema_for_llguidance,
    ("guidance", "structural_tag"): tag_for_llguidance,
}
"""Guides that a library may misunderstand, as it gets them. vLLM lets pass what xgrammar ignores."""


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
        chosen, refusals = self._processor.structured_outputs_config.backend, list[str]()
        for library in LIBRARIES if chosen == "auto" else [chosen]:
            try:
                return self._verified(guided, library)
            except (InvalidGuide, *REFUSALS) as error:
                refusals.append(first_line(error))
        raise InvalidRequest(f"{FIELD}: {'; '.join(dict.fromkeys(refusals))}", field=FIELD)

    def _verified(self, guided: pb.GuidedDecoding, library: str) -> StructuredOutputsParams:
        processor = self._processor
        params = SamplingParams(structured_outputs=_structured(guided, library))
        params.verify(
            processor.model_config,
            processor.speculative_config,
            replace(processor.structured_outputs_config, backend=library),
            processor.tokenizer,
        )
        return params.structured_outputs


def _structured(guided: pb.GuidedDecoding, library: str) -> StructuredOutputsParams:
    for name in ("backend", "whitespace_pattern"):
        if guided.HasField(name):
            raise Unsupported(f"{FIELD}.{name}: the server chooses it", field=f"{FIELD}.{name}")
    kind = guided.WhichOneof("guide")
    assert kind is not None, "a validated request has a guide"
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "choice":
        return StructuredOutputsParams(choice=list(guided.choice.choices))
    text: str = getattr(guided, kind)
    as_followed = AS_FOLLOWED.get((library, kind))
    return StructuredOutputsParams(**{OUR_KINDS[kind]: as_followed(text) if as_followed else text})


def _key(options: pb.SamplingOptions) -> bytes:
    return options.guided_decoding.SerializeToString(deterministic=True)

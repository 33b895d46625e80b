"""How the answers to one chat completion are to be written, and how they are read.

Sans-IO. Holds what tools, grammars and thinking have to do with each other. Knows nothing about JSON.
"""

from __future__ import annotations

from dataclasses import replace

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import Body, InvalidBody
from enginewire.backend.frontends.http_api.openai.answers.format import AnswerFormat, CallFormat, ModelFormats
from enginewire.backend.frontends.http_api.openai.fields.guide import FIELD
from enginewire.backend.frontends.http_api.openai.generation_request import GenerationRequest
from enginewire.backend.frontends.http_api.openai.tools.fields import CHOICE, TOOLS, AskedTools
from enginewire.backend.frontends.http_api.openai.tools.guide import tool_guide
from enginewire.backend.parsing.thinking import ThinkingMarkers

SHOWS_THINKING = "include_reasoning"


def with_format(
    asked: GenerationRequest, body: Body, tools: AskedTools | None, formats: ModelFormats
) -> GenerationRequest:
    """Add grammar and format of the answers. Raises InvalidBody."""
    request = asked.prompts[0].request
    # The answer's own grammar is a structural tag when tools come in, and still begins with its first token.
    is_whole = tools is not None and request.sampling_options.HasField("guided_decoding")
    if tools is not None:
        asked = with_tool_guide(asked, tools, formats)
    shows_thinking = body.get(SHOWS_THINKING) is None or body.flag(SHOWS_THINKING)
    calls = None if tools is None else call_format(tools, formats)
    thinking = thinking_of(request, formats, is_whole=is_whole)
    if calls is None and thinking is None:
        return asked
    answers = AnswerFormat(calls, thinking, shows_thinking)
    # The end of the prompt may have opened the thinking.
    if thinking is not None:
        request.output_options.formatted_prompt = True
    if formats.special_texts.intersection(answers.markers):
        request.output_options.skip_special_tokens = body.flag("skip_special_tokens")
    return replace(asked, format=answers)


def with_tool_guide(asked: GenerationRequest, tools: AskedTools, formats: ModelFormats) -> GenerationRequest:
    """Add the grammar that calls follow, and where it comes from. Raises InvalidBody."""
    sampling = asked.prompts[0].request.sampling_options
    answer = None
    if sampling.HasField("guided_decoding"):
        answer = (sampling.guided_decoding, asked.param_of(FIELD) or FIELD)
    guided = tool_guide(tools, None if formats.tools is None else formats.tools.tag, answer)
    if guided is None:
        return asked
    guide, field = guided
    sampling.guided_decoding.CopyFrom(guide)
    # The choice asks for the grammar; what may be wrong in it are the parameters of the tools.
    params = {FIELD: field, f"{FIELD}.{guide.WhichOneof('guide')}": TOOLS if field == CHOICE else field}
    return replace(asked, params={**asked.params, **params})


def call_format(tools: AskedTools, formats: ModelFormats) -> CallFormat:
    """How calls come. Raises InvalidBody for a model whose calls cannot be read."""
    is_free = not (tools.only or tools.is_required)
    if is_free and formats.tools is None:
        what = "how this model writes calls is not known: the server needs --tool-call-parser"
        raise InvalidBody(TOOLS, f"{what}, or the request tool_choice required")
    return CallFormat(
        formats.tools,
        tools.schemas,
        only=tools.only,
        is_list=tools.is_required,
        max_calls=None if tools.is_parallel else 1,
    )


def thinking_of(
    request: pb.PreprocessedRequest, formats: ModelFormats, *, is_whole: bool
) -> ThinkingMarkers | None:
    """How thinking is marked; None where a grammar leaves no room for it, as one of the whole answer."""
    guide = request.sampling_options.guided_decoding.WhichOneof("guide")
    return formats.thinking if guide is None or (guide == "structural_tag" and not is_whole) else None

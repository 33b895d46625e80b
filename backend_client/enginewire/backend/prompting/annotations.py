"""What a caller wants to be told beside the answer: "key" or "key:value", answered by events of that name.

Holds the annotations that a backend answers itself. Knows nothing about engines and their events.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.decoding.annotated import Annotated, BackendOutput
from enginewire.backend.prompting.prompts import Prompt

FORMATTED_PROMPT: Final = "formatted_prompt"
"""The prompt as text, templates applied."""
PROMPT_IDS: Final = "token_ids"
"""Which tokens the prompt has become, as a list in JSON."""
OURS: Final = frozenset({FORMATTED_PROMPT, PROMPT_IDS})


def take_ours(request: pb.PreprocessedRequest) -> frozenset[str]:
    """The keys that the backend answers, as annotations or as options; no annotation of them is left."""
    asked = OURS.intersection(map(key_of, request.annotations))
    if asked:
        request.annotations[:] = without(request.annotations, asked)
    options = request.output_options
    if options.formatted_prompt:
        asked |= {FORMATTED_PROMPT}
    if options.return_tokens_as_token_ids:
        asked |= {PROMPT_IDS}
    return asked


def answers(asked: Collection[str], prompt: Prompt) -> Iterator[Annotated[BackendOutput]]:
    """The events that answer `asked`."""
    if FORMATTED_PROMPT in asked:
        yield Annotated(event=FORMATTED_PROMPT, comment=[prompt.text])
    if PROMPT_IDS in asked:
        yield Annotated(event=PROMPT_IDS, comment=[json.dumps(list(prompt.token_ids))])


def without(annotations: Iterable[str], keys: Collection[str]) -> list[str]:
    """The annotations of other keys."""
    return [annotation for annotation in annotations if key_of(annotation) not in keys]


def key_of(annotation: str) -> str:
    """What is before the colon."""
    return annotation.partition(":")[0]

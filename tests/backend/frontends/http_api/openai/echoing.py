"""A backend whose model repeats the last message, behind a template with the marks of a real one."""

from __future__ import annotations

from tokenizers import Tokenizer

from enginewire.backend.backend import Backend
from enginewire.backend.frontends.text_backend import TextBackend
from enginewire.backend.prompting.chat_template import ChatTemplate
from enginewire.backend.prompting.tokenizer import BackendTokenizer
from enginewire.server.engines.mocker.tokenizer import byte_tokenizer

HERMES = "{# <tool_call> tool_calls role tool #}{% if tools %}{% endif %}"
LAST_MESSAGE = "{{ messages[-1].content }}"


def with_template(backend: TextBackend, template: str) -> TextBackend:
    """The same engine behind another chat template; the mocker repeats the prompt."""
    tokenizer = BackendTokenizer(
        Tokenizer.from_str(byte_tokenizer().files["tokenizer.json"].decode()),
        chat_template=ChatTemplate(template, {}),
    )
    return TextBackend(Backend(backend.backend.engines, tokenizer.vocabulary), tokenizer)

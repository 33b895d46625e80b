import datetime

import pytest

from enginewire.backend.prompting import chat_template
from enginewire.backend.prompting.chat_template import ChatTemplate, ChatTemplateError

HELLO = [{"role": "user", "content": "hello"}]
CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def render(source: str, messages: list[dict[str, object]] | None = None, **tokens: str) -> str:
    return ChatTemplate(source, tokens).render(messages or list(HELLO), add_generation_prompt=True)


def test_a_published_template_renders_a_conversation() -> None:
    text = render(CHATML)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_the_generation_prompt_is_left_out_on_request() -> None:
    text = ChatTemplate(CHATML, {}).render(HELLO, add_generation_prompt=False)
    assert text == "<|im_start|>user\nhello<|im_end|>\n"


def test_the_special_tokens_are_visible_to_the_template() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }}", bos_token="<s>") == "<s>hello"


def test_a_template_may_refuse_the_messages() -> None:
    with pytest.raises(ChatTemplateError, match="no system role"):
        render("{{ raise_exception('no system role') }}")


def test_json_is_written_without_escapes() -> None:
    assert render("{{ messages[0] | tojson }}", [{"a": "<日>"}]) == '{"a": "<日>"}'


def test_generation_blocks_and_loop_controls_are_understood() -> None:
    source = "{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render("{% generation %}" + source + "{% endgeneration %}") == "1"


def test_the_date_is_there_for_templates_that_want_it() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().astimezone().year)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 2 ** 100000 }}",
        "{{ (2 ** 1000) ** 1000 }}",
        "{% for i in range(10000000) %}a{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ missing.attribute }}",
        "{% include 'other' %}",
        "{% if %}",
    ],
)
def test_what_a_template_must_not_do_is_an_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


def test_output_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 100)
    with pytest.raises(ChatTemplateError, match="100 characters"):
        render("{% for i in range(101) %}a{% endfor %}")


def test_templates_are_limited() -> None:
    with pytest.raises(ChatTemplateError, match="at most"):
        ChatTemplate(" " * (chat_template.MAX_TEMPLATE_CHARS + 1), {})


BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part['type'] == 'image' or 'image_url' in part %}<image>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
PARTS = (
    "{% for m in messages %}{% for part in m['content'] %}{% if part['type'] == 'image' %}[IMG]{% endif %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
TEXTS_OF_PARTS = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "needs_parts", "shows_images"),
    [
        (CHATML, False, False),
        (BOTH, False, True),
        (PARTS, True, True),
        (TEXTS_OF_PARTS, True, False),
        # A list is printed, or made JSON, as it is.
        ("{{ messages[0].content }}", False, False),
        ("{{ messages[0] | tojson }}", False, False),
        ("{{ raise_exception('never') }}", False, False),
        ("always the same", False, False),
    ],
)
def test_what_a_template_does_with_lists_is_tried_out(
    source: str, needs_parts: bool, shows_images: bool
) -> None:
    template = ChatTemplate(source, {})
    assert (template.needs_parts, template.shows_images) == (needs_parts, shows_images)

"""The images of a conversation: what a caller may send as one, and where the chat template shows it.

Sans-IO. Shared by the faces for OpenAI's and Anthropic's APIs. Knows nothing about the formats of images,
which the engine reads, and fetches nothing.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Final

from enginewire import v1 as pb
from enginewire.backend.frontends.http_api.body import Body, InvalidBody, checked
from enginewire.backend.prompting.chat_template import IMAGE, text_part
from enginewire.backend.prompting.conversation import Image, Message

# An engine fetches these, if its operator lets it.
FETCHED: Final = ("http", "https", "file")
OF_IMAGES: Final = "image/"
DATA_URL: Final = "must be data:image/TYPE;base64,DATA"
# How much of an image a model sees: all that it can.
DETAILS: Final = ("auto", "high")
MAX_URL_CHARACTERS: Final = 8192

Part = str | Image
"""A text or an image."""


def read_url(field: str, value: object) -> Image:
    """An image by its URL, which has the bytes in it or is passed on. Raises InvalidBody."""
    url = checked(field, value, str)
    scheme, _, rest = url.partition(":")
    if scheme.lower() == "data":
        head, comma, data = rest.partition(",")
        media_type, _, encoding = head.rpartition(";")
        if not comma or encoding.lower() != "base64" or not is_image(media_type or OF_IMAGES):
            raise InvalidBody(field, DATA_URL)
        return read_base64(field, data, media_type)
    if scheme.lower() not in FETCHED or "://" not in url:
        raise InvalidBody(field, f"{DATA_URL}, or a URL of {', '.join(FETCHED)}")
    if len(url) > MAX_URL_CHARACTERS:
        raise InvalidBody(field, f"at most {MAX_URL_CHARACTERS} characters, unless it has the data in it")
    return Image(pb.MultiModalItem(url=url), field)


def is_image(media_type: str) -> bool:
    """Whether it is that of an image, of whichever format."""
    return media_type.lower().startswith(OF_IMAGES)


def read_base64(field: str, data: str, media_type: str) -> Image:
    """An image in base64. Raises InvalidBody."""
    try:
        decoded = binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise InvalidBody(field, "is not in base64") from error
    if not decoded:
        raise InvalidBody(field, "must not be empty")
    return Image(pb.MultiModalItem(data=decoded, media_type=media_type), field)


def check_detail(field: str, part: Body) -> None:
    """Raise InvalidBody for less than all of an image."""
    if part.get("detail") not in (None, *DETAILS):
        raise InvalidBody(f"{field}.detail", f"must be {' or '.join(DETAILS)}")


def joined(parts: Sequence[Part]) -> str | Sequence[object]:
    """The content of a message: its text, or its parts as chat has them where one is an image."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "".join(texts)
    return [text_part(part) if isinstance(part, str) else part for part in parts]


def take_images(messages: Sequence[Message], *, are_shown: bool) -> tuple[Sequence[Message], Sequence[Image]]:
    """What the chat template gets of messages, and the images in them.

    Raises InvalidBody when the template would leave them out.
    """
    images = [part for message in messages for part in parts_of(message) if isinstance(part, Image)]
    if images and not are_shown:
        raise InvalidBody(images[0].field, "the model's chat template does not show images")
    return [as_shown(message) for message in messages] if images else messages, images


def parts_of(message: Message) -> Sequence[object]:
    """None for a message that is a text."""
    content = message.get("content")
    return content if isinstance(content, list) else ()


def as_shown(message: Message) -> Message:
    """With something that stands for each image."""
    parts = [IMAGE if isinstance(part, Image) else part for part in parts_of(message)]
    return {**message, "content": parts} if parts else message

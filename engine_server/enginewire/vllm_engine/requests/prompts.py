"""What vLLM gets of a prompt: its ids, and its pictures as vLLM's processor of the model prepares them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vllm import envs
from vllm.inputs.engine import tokens_input
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY
from vllm.multimodal.media.image import ImageMediaIO

from enginewire import v1 as pb
from enginewire.server.engines.guides.messages import first_line
from enginewire.server.failures import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from concurrent.futures import Future

    from vllm.inputs.engine import EngineInput
    from vllm.multimodal.media.base import MediaWithBytes
    from vllm.v1.engine.input_processor import InputProcessor

REMEMBERED: Final = 32
"""Prompts with pictures that were prepared and may wait for their turn: each of them can have megabytes."""
MOST_FETCHED: Final = 64 * 1024 * 1024
"""Bytes of a picture that is fetched."""
FIELD: Final = "multi_modal_data"
MODALITY: Final = "image"
"""What vLLM calls the parts that the contract calls `image_url`."""


class Pictures(ImageMediaIO):  # type: ignore[misc]  # to mypy, which has no vLLM, it is anything
    """How vLLM reads a picture, with an end to what is fetched."""

    def get_max_bytes(self) -> int:
        """See MediaIO."""
        return MOST_FETCHED


class Prompts:
    """Makes them. `most_pictures` of a prompt; 0 for a model that takes none."""

    def __init__(self, processor: InputProcessor) -> None:
        self._renderer, self._model = processor.renderer, processor.model_config
        self._prepared: OrderedDict[bytes, EngineInput] = OrderedDict()
        taken = self._renderer.mm_processor
        self.most_pictures = taken.info.allowed_mm_limits.get(MODALITY, 0) if taken else 0

    async def prepare(self, message: pb.PreprocessedRequest) -> None:
        """Read the pictures of a prompt, in a thread. What is fetched takes the place of its URL.

        Raises InvalidRequest or Unsupported, with the field.
        """
        if not message.multi_modal_data:
            return
        for path, item in _items(message):
            await self._fetch(path, item)
        if (key := _key(message)) not in self._prepared:
            self._remember(key, await asyncio.wrap_future(self._making(message)))

    def of(self, message: pb.PreprocessedRequest) -> EngineInput:
        """The prompt of a request. One with pictures that was forgotten meanwhile is made here and now."""
        if not message.multi_modal_data:
            return tokens_input(list(message.token_ids))
        if (key := _key(message)) not in self._prepared:
            self._remember(key, self._making(message).result())
        self._prepared.move_to_end(key)
        return self._prepared[key].copy()

    def _remember(self, key: bytes, prompt: EngineInput) -> None:
        self._prepared[key] = prompt
        while len(self._prepared) > REMEMBERED:
            self._prepared.popitem(last=False)

    def _making(self, message: pb.PreprocessedRequest) -> Future[EngineInput]:
        # vLLM's thread for it, because its processors must not run side by side.
        making: Future[EngineInput] = self._renderer._mm_executor.submit(self._made, message)
        return making

    def _made(self, message: pb.PreprocessedRequest) -> EngineInput:
        pictures = list(self._read(message))
        prompt = {
            "prompt_token_ids": list(message.token_ids),
            "multi_modal_data": {MODALITY: [picture for picture, _ in pictures]},
        }
        if message.cache_salt:
            names = [_name(message.cache_salt, data) for _, data in pictures]
            prompt["multi_modal_uuids"] = {MODALITY: names}
        try:
            # Without the cache that notes what vLLM's other process has: a request may still be refused.
            return self._renderer.process_for_engine(prompt, arrival_time=0.0, skip_mm_cache=True)
        except Exception as error:  # whatever a model's processor makes of a caller's picture
            raise InvalidRequest(
                f"{FIELD}: the model cannot take it beside this prompt: {first_line(error)}", field=FIELD
            ) from error

    def _read(self, message: pb.PreprocessedRequest) -> Iterator[tuple[MediaWithBytes, bytes]]:
        """Each picture and its bytes. Together they have no more points than vLLM allows one of them."""
        reader, most, seen = Pictures(), envs.VLLM_MAX_IMAGE_PIXELS, 0
        for number, (path, item) in enumerate(_items(message), 1):
            if number > self.most_pictures:
                field = path.rpartition("[")[0]
                raise InvalidRequest(f"{field}: too many images, at most {self.most_pictures}", field=field)
            try:
                picture = reader.load_bytes(item.data)
            except ValueError as error:
                raise InvalidRequest(f"{path}.data: {first_line(error)}", field=f"{path}.data") from error
            seen += picture.width * picture.height
            if 0 < most < seen:
                reason = f"the pictures have more than {most} points together"
                raise InvalidRequest(f"{path}.data: {reason}", field=f"{path}.data")
            yield picture, item.data

    async def _fetch(self, path: str, item: pb.MultiModalItem) -> None:
        source = item.WhichOneof("source")
        if source == "data":
            return
        field = f"{path}.{source}"
        if source != "url":
            raise Unsupported(f"{field}: this engine takes data and url", field=field)
        if not self._may_fetch(item.url):
            raise Unsupported(f"{field}: this engine fetches nothing from there", field=field)
        connector = MEDIA_CONNECTOR_REGISTRY.load(
            envs.VLLM_MEDIA_CONNECTOR,
            allowed_local_media_path=self._model.allowed_local_media_path,
            allowed_media_domains=self._model.allowed_media_domains,
        )
        try:
            picture = await connector.load_from_url_async(
                item.url, Pictures(), fetch_timeout=envs.VLLM_IMAGE_FETCH_TIMEOUT
            )
        except Exception as error:  # of HTTP, of files, of pictures
            raise InvalidRequest(f"{field}: no picture: {first_line(error)}", field=field) from error
        item.data = picture.original_bytes

    def _may_fetch(self, url: str) -> bool:
        scheme = url.partition(":")[0].lower()
        if scheme in ("http", "https"):
            return bool(self._model.allowed_media_domains)
        return scheme == "data" or (scheme == "file" and bool(self._model.allowed_local_media_path))


def _items(message: pb.PreprocessedRequest) -> Iterator[tuple[str, pb.MultiModalItem]]:
    """With their paths."""
    for i, part in enumerate(message.multi_modal_data):
        for j, item in enumerate(part.items):
            yield f"{FIELD}[{i}].items[{j}]", item


def _key(message: pb.PreprocessedRequest) -> bytes:
    """Of all that a prepared prompt depends on."""
    told = pb.PreprocessedRequest(
        token_ids=message.token_ids, multi_modal_data=message.multi_modal_data, cache_salt=message.cache_salt
    )
    return hashlib.sha256(told.SerializeToString(deterministic=True)).digest()


def _name(salt: str, data: bytes) -> str:
    """Of a picture in vLLM's caches, where nobody else finds it."""
    return hashlib.sha256(b"\0".join((salt.encode(), data))).hexdigest()

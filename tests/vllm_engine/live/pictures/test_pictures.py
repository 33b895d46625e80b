"""Pictures: what a model makes of them behind our server, beside what vLLM makes of them by itself."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import grpc
import pytest
from PIL import Image
from tokenizers import Tokenizer

from enginewire import v1 as pb
from tests.vllm_engine.live.conftest import START_SECONDS, Server
from tests.vllm_engine.live.pictures.conftest import MOST
from tests.vllm_engine.live.test_answers import connection, outputs, request, tokens_of

TOKENS = 12
OWN = str(Path(__file__).with_name("own_answers.py"))


def picture(seed: int, size: tuple[int, int] = (40, 28), kind: str = "PNG") -> bytes:
    """Noise."""
    made = Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))
    encoded = io.BytesIO()
    made.save(encoded, kind)
    return encoded.getvalue()


def asked(folder: Path, text: str, pictures: Iterable[bytes | pb.MultiModalItem]) -> pb.PreprocessedRequest:
    """Greedy, with a picture at each `<image>`."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made = pb.PreprocessedRequest(token_ids=tokenizer.encode(text, add_special_tokens=False).ids)
    made.sampling_options.temperature = 0
    made.stop_conditions.max_tokens, made.stop_conditions.ignore_eos = TOKENS, True
    items = made.multi_modal_data.add(part_type="image_url").items
    for each in pictures:
        items.append(each if isinstance(each, pb.MultiModalItem) else pb.MultiModalItem(data=each))
    return made


def own_answers(folder: Path, all_asked: Sequence[pb.PreprocessedRequest]) -> list[list[int]]:
    """vLLM's, without anything of ours."""
    prompts = [
        (
            list(each.token_ids),
            [base64.b64encode(item.data).decode() for item in each.multi_modal_data[0].items],
        )
        for each in all_asked
    ]
    command = [sys.executable, OWN, str(folder), str(TOKENS)]
    told = subprocess.run(
        command, input=json.dumps(prompts).encode(), stdout=subprocess.PIPE, timeout=START_SECONDS, check=True
    )
    found: list[list[int]] = json.loads(told.stdout.splitlines()[-1])
    return found


def refusal(server: Server, made: pb.PreprocessedRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        outputs(server, made)
    return caught.value.code(), caught.value.details()


def test_tokens_are_those_that_vllm_makes_of_the_same_pictures(seeing, folder):
    one, other = picture(1), picture(2, (64, 64), "JPEG")
    all_asked = [
        asked(folder, "Who is <image> here?", [one]),
        asked(folder, "Who is <image> here?", [other]),
        asked(folder, "<image> or <image>?", [one, other]),
        asked(folder, "<image> or <image>?", [other, one]),
    ]
    # Twice: the second time the prefix and the picture are in caches.
    found = [[tokens_of(outputs(seeing, each)) for each in all_asked] for _ in "ab"]
    assert found[0] == found[1] == own_answers(folder, all_asked)
    assert len({tuple(tokens) for tokens in found[0]}) == len(all_asked)


def test_a_prefix_is_found_again_with_the_same_picture_only(seeing, folder):
    def cached(seed: int, salt: str = "") -> int:
        made = asked(folder, "<image>" + "Who are you? " * 60, [picture(seed)])
        made.cache_salt = salt
        usage = outputs(seeing, made)[-1].completion_usage
        assert usage.prompt_tokens == len(made.token_ids)
        return usage.prompt_tokens_details.cached_tokens

    assert cached(11) == 0
    assert cached(11) > 0
    assert cached(12) == 0
    assert cached(11, "a tenant") == 0


def test_choices_share_a_picture(seeing, folder):
    made = asked(folder, "Who is <image> here?", [picture(1)])
    alone = tokens_of(outputs(seeing, made))
    made.sampling_options.n = 3
    answered = outputs(seeing, made)
    assert [tokens_of(answered, index) for index in range(3)] == 3 * [alone]


def test_a_picture_in_a_url_of_data_is_the_same(seeing, folder):
    data = picture(1)
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    found = [
        tokens_of(outputs(seeing, asked(folder, "Who is <image> here?", [each])))
        for each in (data, pb.MultiModalItem(url=url))
    ]
    assert found[0] == found[1]


def test_it_says_that_it_takes_pictures(seeing, vllm):
    def types(server: Server) -> list[str]:
        with connection(server) as channel:
            info = pb.DiscoveryServiceStub(channel).GetEngineInfo(pb.GetEngineInfoRequest())
        return list(info.config.capabilities.multi_modal_part_types)

    assert types(seeing) == ["image_url"]
    assert types(vllm) == []


@pytest.mark.parametrize(
    ("text", "items", "code", "named"),
    [
        ("<image>", [b"no picture"], grpc.StatusCode.INVALID_ARGUMENT, "multi_modal_data[0].items[0].data"),
        (
            "<image><image>",
            [picture(1), picture(1)[:200]],
            grpc.StatusCode.INVALID_ARGUMENT,
            "multi_modal_data[0].items[1].data",
        ),
        (
            "<image>" * (MOST + 1),
            [picture(1)] * (MOST + 1),
            grpc.StatusCode.INVALID_ARGUMENT,
            f"multi_modal_data[0].items: too many images, at most {MOST}",
        ),
        ("none", [picture(1)], grpc.StatusCode.INVALID_ARGUMENT, "multi_modal_data"),
        (
            "<image>" + "Who are you? " * 101,
            [picture(1)],
            grpc.StatusCode.INVALID_ARGUMENT,
            "multi_modal_data: with its pictures the prompt exceeds the context",
        ),
        (
            "<image>",
            [pb.MultiModalItem(url="http://127.0.0.1:9/cat.png")],
            grpc.StatusCode.UNIMPLEMENTED,
            "multi_modal_data[0].items[0].url",
        ),
        (
            "<image>",
            [pb.MultiModalItem(url="file:///etc/passwd")],
            grpc.StatusCode.UNIMPLEMENTED,
            "multi_modal_data[0].items[0].url",
        ),
        (
            "<image>",
            [pb.MultiModalItem(url="data:image/png;base64,AAAA")],
            grpc.StatusCode.INVALID_ARGUMENT,
            "multi_modal_data[0].items[0].url",
        ),
        (
            "<image>",
            [pb.MultiModalItem(raw_url="data:image/png;base64,AAAA")],
            grpc.StatusCode.UNIMPLEMENTED,
            "multi_modal_data[0].items[0].raw_url",
        ),
    ],
)
def test_what_is_no_picture_for_it_is_refused_with_the_field(seeing, folder, text, items, code, named):
    found, message = refusal(seeing, asked(folder, text, items))
    assert found is code, message
    assert named in message
    assert outputs(seeing, asked(folder, "Who is <image> here?", [picture(1)]))


def test_log_probabilities_of_a_prompt_with_pictures_are_refused(seeing, folder):
    made = asked(folder, "Who is <image> here?", [picture(1)])
    made.output_options.prompt_logprobs = 1
    code, message = refusal(seeing, made)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "output_options.prompt_logprobs" in message


def test_an_engine_without_pictures_refuses_them_by_the_field(vllm, folder):
    made = request("Who are you?")
    made.multi_modal_data.add(part_type="image_url").items.add(data=picture(1))
    code, message = refusal(vllm, made)
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "multi_modal_data: needs the capability multi_modal_part_types" in message


def test_the_place_of_a_picture_without_one_does_not_end_the_engine(seeing, folder):
    made = asked(folder, "<image>", [])
    del made.multi_modal_data[:]
    with contextlib.suppress(grpc.RpcError):
        outputs(seeing, made)
    assert outputs(seeing, asked(folder, "Who is <image> here?", [picture(1)]))

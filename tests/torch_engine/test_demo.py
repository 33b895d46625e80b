"""The model that ships with the project recalls what it was taught: in a crowd, in any dtype, in 4 bits."""

from __future__ import annotations

import pytest
import transformers

from enginewire import v1 as pb
from enginewire.server.demo_model import PATH, questions
from enginewire.torch_engine.folder.source import resolve_model
from enginewire.torch_engine.loading.load import load_engine
from enginewire.torch_engine.options import TorchEngineOptions
from tests.long import long_but
from tests.torch_engine.tiny import CoreUnderTest

NUMBERS = [
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "quantization": "int4"},
    {"dtype": "float32", "kv_cache_dtype": "int8_per_token_head"},
    {"dtype": "float32", "quantization": "int4"},
    {"dtype": "float32", "kv_cache_dtype": "bfloat16"},
    {"dtype": "float32"},
]


@pytest.mark.parametrize("numbers", long_but(NUMBERS[:1], NUMBERS))
def test_the_demo_model_answers_a_crowd_of_questions_exactly(numbers):
    tokenizer = transformers.AutoTokenizer.from_pretrained(PATH)
    options = TorchEngineOptions("builtin:demo", device="cpu", num_threads=1, max_num_seqs=32, **numbers)
    engine = CoreUnderTest(load_engine(options, lambda phase, done: None))
    asked = dict(list(questions().items())[::6])
    contexts = {}
    for question in asked:
        conversation = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        sampling = pb.SamplingOptions(temperature=0.0)
        contexts[question] = engine.add(pb.PreprocessedRequest(token_ids=prompt, sampling_options=sampling))
    engine.run()
    for question, context in contexts.items():
        answer = engine.answers[context]
        assert answer.terminals[0].finish_reason == pb.FINISH_REASON_EOS
        assert tokenizer.decode(answer.tokens[0], skip_special_tokens=True) == asked[question]


def test_builtin_demo_is_a_folder_of_this_installation():
    assert (resolve_model("builtin:demo") / "config.json").is_file()

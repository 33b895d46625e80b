"""What vLLM itself says to a prompt with pictures: own_answers.py MODEL_FOLDER TOKENS

Reads `[[token ids, [picture in base64, ...]], ...]` from standard input and writes the lists of tokens. A
process of its own: nothing of ours is imported here.
"""

from __future__ import annotations

import base64
import io
import json
import os
import sys

os.environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}

from PIL import Image
from vllm import LLM, SamplingParams


def main(folder: str, tokens: str) -> None:
    """Greedy answers, one after the other."""
    llm = LLM(folder, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=2**26, max_num_seqs=4)
    params = SamplingParams(temperature=0, max_tokens=int(tokens), ignore_eos=True, detokenize=False)
    answers = []
    for token_ids, pictures in json.load(sys.stdin):
        images = [Image.open(io.BytesIO(base64.b64decode(each))).convert("RGB") for each in pictures]
        prompt = {"prompt_token_ids": token_ids, "multi_modal_data": {"image": images}}
        (made,) = llm.generate(prompt, params, use_tqdm=False)
        answers.append(list(made.outputs[0].token_ids))
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Writes a model that takes pictures, Idefics3 with random weights: make_vision_model.py FOLDER

Of a picture it sees 56 x 56 points in patches of 14, which become four tokens at the place of `<image>`. Its
other tokens are those of builtin:demo. What it says means nothing, and differs from picture to picture.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessor,
    Idefics3Processor,
    PreTrainedTokenizerFast,
)

from enginewire.server import demo_model

SIDE, PATCH, SCALE = 56, 14, 2
TOKENS = (SIDE // PATCH // SCALE) ** 2
SPECIAL = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
SPREAD = 0.3
"""Of the random weights: enough for a picture to change what follows."""
TEMPLATE = """\
{%- for message in messages %}
{%- if message.content is string %}{{ message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == "text" %}{{ part.text }}{% else %}<image>{% endif %}
{%- endfor %}
{%- endif %}{{ "\\n" }}
{%- endfor %}"""


def main(folder: str) -> None:
    """Configuration, processor and weights, as Hugging Face saves them."""
    tokenizer = tokenizer_of_demo()
    largest = {"longest_edge": SIDE}
    images = Idefics3ImageProcessor(size=largest, max_image_size=largest, do_image_splitting=False)
    processor = Idefics3Processor(images, tokenizer, image_seq_len=TOKENS, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    torch.manual_seed(0)
    model = Idefics3ForConditionalGeneration(configuration(tokenizer))
    for name, values in model.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(values, std=SPREAD)
    model.generation_config.do_sample = False
    model.save_pretrained(folder)


def tokenizer_of_demo() -> PreTrainedTokenizerFast:
    """With tokens for pictures behind its own."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(Path(demo_model.PATH))
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    return tokenizer


def configuration(tokenizer: PreTrainedTokenizerFast) -> Idefics3Config:
    """Two layers for pictures and two for text."""
    sizes = {"hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    text = {"model_type": "llama", "vocab_size": len(tokenizer), "num_key_value_heads": 2, **sizes, **ids}
    return Idefics3Config(
        vision_config={"image_size": SIDE, "patch_size": PATCH, **sizes},
        text_config={"max_position_embeddings": 512, **text},
        image_token_id=tokenizer.convert_tokens_to_ids(SPECIAL[0]),
        scale_factor=SCALE,
        **ids,
    )


if __name__ == "__main__":
    main(sys.argv[1])

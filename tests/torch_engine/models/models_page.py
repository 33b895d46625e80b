"""Writes docs/models.md from the tables that the tests run.

`python -m tests.torch_engine.models.models_page > docs/models.md`
"""

from __future__ import annotations

import transformers

from enginewire.torch_engine.folder.config import ARCHITECTURES, ENCODERS
from tests.torch_engine.models.huggingface.configs import REFUSED, SERVED

PAGE = """\
# Models

*For operators who want to know whether their model runs.*

<!-- Written by: python -m tests.torch_engine.models.models_page > docs/models.md -->

The torch engine serves a folder with `config.json` and `.safetensors` weights in one of two ways.
`architectures` in `config.json` decides which. Encoders are a [third kind](#embeddings).

| | Own code | Through transformers |
|---|---|---|
| Architectures | {num_native}: {native} | {num_served} tested, listed below; others are tried at start |
| Speed | what the engine can do | about that of a forward pass of transformers |
| Reads | safetensors, [GGUF](#gguf-files) | safetensors, never code or pickle |
| Scheduler, sampling, limits | the same | the same |

Where every layer has a sliding window, as in Mistral, a sequence gives the blocks back that lie wholly
behind the longest one. They stay in the prefix cache until somebody needs them. So a sequence needs room
for a window and a step, not for its whole text, which may be longer than the cache. Beams and prompts that
are handed over keep theirs, and so does every sequence of a model in which one layer sees everything.

## Through transformers

It takes transformers 5.4 or newer: older ones ask for masks in another way.

Every attention layer of the model calls the engine, which keeps keys and values in its own blocks.
Grouped heads, sliding windows, soft caps, attention sinks and values of another size than keys work.
What a layer caches and how far it looks back is not read from the configuration but observed in a
first pass. A layer that calls with an option that the engine does not know, such as the blocks that
sparse attention has chosen, is refused by the option's name, and so is a model that asks its cache for
anything but keys and values.

Then come two trials. The first is about positions: eight tokens around every power of two and every
number of the configuration, up to the whole context, are computed once as transformers means it, behind
as many tokens that are forgotten, and once with the positions that the engine gives. Both must have the
same logits, bit for bit on a CPU. The context ends before the first position that differs: with
`attn_temperature_tuning` Llama 4 scales some layers by the row of the batch from `floor_scale` on, so it
serves `floor_scale - 1` tokens. A model that differs from the beginning does not start. In the second
trial two short sequences, cut into pieces and mixed, must give the logits that each gives alone.

In half precision rounding hides small differences, and the second trial is coarser: there the tables
below, which are tested in float32, are the stronger evidence.

The context ends early where transformers itself would let sequences of one batch change each other:
`longrope` and `dynamic` rotary embeddings at their original context, attention in chunks at one chunk.
Latent attention (DeepSeek and others) works, but caches the expanded keys and values.
Quantised weights are refused. A model that can see (`gemma3`) serves text only. Of a family that mixes
attention with other layers (`granitemoehybrid`), the models are served that only have attention. The text
part of a family (`Llama4ForCausalLM`) is served under its own configuration and under that of the whole.

## Quantised weights

Our own code reads weights that others have quantised: GPTQ (4 and 8 bits), AWQ (4 bits, `gemm`),
compressed-tensors (whole numbers of 4 and 8 bits, and floats of 8 bits), and blocks of 8-bit floats, as
DeepSeek and Qwen publish them. They become plain floats when they are loaded. So they take as much memory as
before they were quantised, and are no quicker, unless `--quantization int8` or `int4` makes them whole
numbers again. Activations then have 8 bits; without the option they keep their precision, whatever the folder
says of them.

`--quantization int4` keeps the numbers of weights that had 4 bits or fewer before: it finds the grid of 16
values that each 32 inputs of an output lie on, and rounds only its scale, to 8 bits. That works for GPTQ,
AWQ and compressed-tensors with groups of 32, 64, 128 or all inputs, and for Q4_0, Q4_1 and Q4_K of GGUF,
whose answers then change [as little](performance.md#weights-of-4-bits) as with int8. Weights of 5 bits and
more are rounded a second time, and so are those of GPTQ with `desc_act`, where inputs of one group do not lie
side by side, and groups of 16.

## GGUF files

With the package `gguf` (`pip install '.[engine,gguf]'`) the torch engine serves a file as llama.cpp has it:

```console
$ enginewire serve ./my-llama.Q8_0.gguf --dtype bfloat16 --http-port 8080
```

The file has everything: the sizes of the model, its tokenizer, its chat template, and what ends an answer.
Served are Llama, Mistral, Qwen2 and Qwen3 without experts, with weights of every kind that the package
reads: Q8_0, Q4_0, Q4_K, Q6_K and about twenty more. They become floats when they are loaded, as above, and
`--quantization int8` or `int4` makes them whole numbers again. A scaling of positions that is not Llama's
own, and any other architecture, is refused by name: [llama.cpp's server](engines.md#completions-servers) may
run those.

Tests hold the weights of ten kinds, and what is generated, against what transformers reads in the same
file; `make llama-test` holds what is likely next against llama.cpp itself.

## Embeddings

Every model of both kinds embeds: an input is a prompt without an output, in the same steps as
everything else. Its vector is made of the states below the head: the last token's (`--pooling
last`, the default), the first one's (`cls`) or the mean of all (`mean`). Where the folder has
`1_Pooling/config.json`, as sentence-transformers writes it, that decides unless `--pooling` does.
Vectors have length 1 unless `--no-normalize-embeddings` is given. Inputs do not use the prefix
cache.

An encoder makes an engine that only embeds, with `mean` as the default. It runs through
transformers, each input whole. The longest input is `--max-model-len`, else `max_seq_length` of
`sentence_bert_config.json`, else what the model has positions for; longer ones are refused. Served
are {encoders}, as a plain model or with a masked language head.

The vectors of every served model equal those of transformers to 0.0001 on a tiny random one: alone,
in a batch, and for decoders in chunks and beside running requests. The real all-MiniLM-L6-v2 gives
the similarities that sentence-transformers gives.

## Tested

Greedy output in float32 equals `generate` token for token on a tiny random model of each: alone, in a
crowd that arrives late, in chunks of at most 7 tokens, after preemption, and with two choices. Where
the best two logits are closer than 0.001, either token counts.

`python -m tests.torch_engine.models.models_sweep` asks every causal language model of the installed
transformers, and compares those that start on prompts of up to 500 tokens, all in one crowd and in chunks.
With transformers 5.23 it said of 189: 106 equal, none different, 80 refused with a reason, 3 not tried:
`gemma3n` needs the library timm, and transformers cannot build its two Gemma 4 assistants.

| model_type | Architecture |
|---|---|
{served}

## Refused

At least one of every kind; the message at start names the reason.

| model_type | Reason |
|---|---|
{refused}
"""


def page() -> str:
    """The whole page."""
    return PAGE.format(
        encoders=_listed(ENCODERS),
        num_native=len(ARCHITECTURES),
        native=", ".join(name.removesuffix("ForCausalLM") for name in ARCHITECTURES),
        num_served=len(SERVED),
        served="\n".join(f"| {name} | {_architecture(name)} |" for name in SERVED),
        refused="\n".join(f"| {name} | {refused.reason} |" for name, refused in REFUSED.items()),
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _architecture(model_type: str) -> str:
    name: str = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[transformers.CONFIG_MAPPING[model_type]].__name__
    return name


if __name__ == "__main__":
    print(page(), end="")

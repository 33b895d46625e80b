"""Encoders of transformers, such as BERT, as the engine runs them: whole inputs in, sums of states out.

Every token of an input looks at every other, so that nothing is cached and no input is cut into pieces.
Inputs of a step are computed in groups of similar length, padded and masked. Knows nothing about
folders, requests or schedulers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Seq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from enginewire.torch_engine.layers.device import wait_for
from enginewire.torch_engine.requests.pooling import shares_of
from enginewire.torch_engine.requests.scheduled import Scheduled
from enginewire.torch_engine.requests.sequence import Sequence
from enginewire.torch_engine.runner.model_runner import new_tokens, pieces_of
from enginewire.torch_engine.runner.unread_tokens import UnreadTokens
from enginewire.torch_engine.runner.vectors import Computed, add_up

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_PADDING = 0.25
"""A group ends before this share of it is padding: short inputs do not pay for long ones."""


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Sizes in elements and tokens. There is no cache to be described."""

    architecture: str
    vocab_size: int
    max_position: int
    embedding_size: int
    kv_sizes: tuple[int, ...] = ()
    windows: tuple[int | None, ...] = ()


class Encoder:
    """A network, as the runner of an engine core. All grants of its batches embed whole inputs."""

    def __init__(self, network: PreTrainedModel, config: EncoderConfig, padding_id: int) -> None:
        """`padding_id` fills the short inputs of a group; it is masked."""
        self.config = config
        self._network = network
        self._padding_id = padding_id

    @torch.inference_mode()
    def forward(self, batch: Seq[Scheduled], unread: UnreadTokens | None = None) -> Computed:
        """Compute every input; there are no logits and no `unread` tokens."""
        states = self.encode([new_tokens(grant) for grant in batch])
        shares = shares_of(pieces_of(batch))
        rows = torch.tensor(shares.rows, dtype=torch.int64, device=states.device)
        return Computed(torch.empty(0, 1), add_up(states[rows], shares))

    def check(self) -> None:
        """Raise what the device says to everything, once it is lost."""
        wait_for(self._network.device)

    def read_kv(self, sequence: Sequence, num_tokens: int) -> memoryview:
        """Never asked for: an engine that only embeds has no role but to embed."""
        raise AssertionError("an encoder keeps no keys and values")

    @torch.inference_mode()
    def encode(self, inputs: Seq[list[int]]) -> Tensor:
        """The last states [tokens of all inputs, width], input after input."""
        found: dict[int, Tensor] = {}
        for group in groups_of([len(each) for each in inputs]):
            states = self._states([inputs[place] for place in group])
            found.update((place, row[: len(inputs[place])]) for place, row in zip(group, states, strict=True))
        return torch.cat([found[place] for place in range(len(inputs))])

    def _states(self, group: list[list[int]]) -> Tensor:
        """[inputs, longest, width]; what belongs to padding means nothing."""
        longest = max(map(len, group))
        padded = [each + [self._padding_id] * (longest - len(each)) for each in group]
        mask = [[1] * len(each) + [0] * (longest - len(each)) for each in group]
        device = self._network.device
        made = self._network(
            input_ids=torch.tensor(padded, device=device), attention_mask=torch.tensor(mask, device=device)
        )
        states: Tensor = made.last_hidden_state
        return states


def groups_of(lengths: Seq[int]) -> Iterator[list[int]]:
    """Places of `lengths`, each once, in groups that can be padded at little cost."""
    group: list[int] = []
    used = 0
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        padded = (len(group) + 1) * lengths[group[0]] if group else 0
        if group and used + lengths[place] < (1 - MOST_PADDING) * padded:
            yield group
            group, used = [], 0
        group.append(place)
        used += lengths[place]
    if group:
        yield group

"""What a scripted engine says of itself: abilities, revisions, limits. Serves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from enginewire import v1 as pb
from enginewire.conformance.client_side.stage import alphabet
from enginewire.conformance.client_side.stage.turn import LIFE
from enginewire.v1 import revision

MODEL: Final = "scripted"
WORKER_ID: Final = 7
ACCEPTED: Final = (pb.MINIMUM_CLIENT_REVISION, pb.CONTRACT_REVISION)
"""The client revisions that every server of this contract accepts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`multiplexed`: it offers GenerateMultiplexed beside Generate, and plays the same scripts there.

    `stop_strings`: it says that it evaluates what is about text. `revisions`: the oldest and newest client
    revision that it says it accepts. `min_keepalive_ms`: the pings it bears, and it means it.
    `strips_first_space`: its tokenizer does so with every text that it decodes.
    """

    resume: bool = True
    stop_strings: bool = False
    multiplexed: bool = False
    revisions: tuple[int, int] = ACCEPTED
    min_keepalive_ms: int | None = None
    strips_first_space: bool = False

    def info(self) -> pb.GetEngineInfoResponse:
        """GetEngineInfo."""
        oldest, newest = self.revisions
        return pb.GetEngineInfoResponse(
            config=self._config(),
            engine_name="enginewire-conformance",
            engine_version="1",
            instance_id="scripted",
            engine_lifetime_id=LIFE % 1,
            contract_revision=newest,
            minimum_client_revision=oldest,
            maximum_client_revision=newest,
            schema_digest=revision.schema_digest(),
            worker_id=WORKER_ID,
        )

    def _config(self) -> pb.EngineConfig:
        return pb.EngineConfig(
            model=MODEL,
            context_length=4096,
            vocab_size=alphabet.VOCAB_SIZE,
            eos_token_ids=[alphabet.EOS],
            role=pb.ENGINE_ROLE_AGGREGATED,
            capabilities=pb.Capabilities(
                seed=True,
                multiple_choices=True,
                logprobs=True,
                selected_logprobs=True,
                embeddings=True,
                resume=self.resume,
                stop_strings=self.stop_strings,
                multiplexed=self.multiplexed,
                tokenizer=True,
                watch_load=True,
                default_sampling=pb.SamplingDefaults(temperature=1.0, top_p=1.0, repetition_penalty=1.0),
            ),
            limits=pb.Limits(max_n=8, max_logprobs=8, min_keepalive_interval_ms=self.min_keepalive_ms),
        )


PLAIN: Final = Facts()
"""What most checks need."""

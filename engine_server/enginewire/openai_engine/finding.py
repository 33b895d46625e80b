"""Which kind of server answers, as soon as one does."""

from __future__ import annotations

from typing import Final

from enginewire.openai_engine.connection import Connection, Json
from enginewire.openai_engine.failure import NOT_SERVING, Refused
from enginewire.openai_engine.llama_cpp.server import LlamaCpp
from enginewire.openai_engine.model import Model
from enginewire.openai_engine.options import OpenAIEngineOptions
from enginewire.openai_engine.server import CompletionsServer
from enginewire.openai_engine.vllm import Vllm
from enginewire.server.engines.remote.arrival import NotYet, first_answer
from enginewire.server.engines.remote.watch import Lost, NoUpstream
from enginewire.server.failures import EngineMistake

KIND_OF_OWNER: Final = {"llamacpp": "llama.cpp", "vllm": "vllm"}
"""By what `/v1/models` says in `owned_by`."""


async def found(
    connection: Connection, options: OpenAIEngineOptions, model: Model | None
) -> CompletionsServer:
    """The server, once it serves. Raises NoUpstream for one that does not in time, or that cannot be used."""
    try:
        models = await first_answer(
            lambda: _models(connection),
            whose="server",
            target=connection.target,
            patience=options.start_timeout,
        )
        kind = _kind(models) if options.server == "auto" else options.server
        if kind == "llama.cpp":
            return await LlamaCpp.of(connection, models, model)
        return await Vllm.of(connection, models, model, options.max_num_seqs)
    except NoUpstream as error:
        raise NoUpstream(f"--upstream {options.target}: {error}") from error
    except (Lost, Refused, EngineMistake) as error:
        raise NoUpstream(f"--upstream {options.target} is no completions server: {error}") from error


async def _models(connection: Connection) -> Json:
    """What it serves. Raises NotYet, and Refused for an answer that more patience would not change."""
    try:
        return await connection.get("/v1/models")
    except (Lost, Refused) as error:
        if isinstance(error, Refused) and error.status not in NOT_SERVING:
            raise
        raise NotYet(str(error)) from error


def _kind(models: Json) -> str:
    data = models.get("data") or [{}]
    owner = data[0].get("owned_by", "")
    if owner not in KIND_OF_OWNER:
        known = " and ".join(KIND_OF_OWNER.values())
        raise NoUpstream(f"is of {owner!r:.50}, and {known} are known; --openai-server says which it is like")
    return KIND_OF_OWNER[owner]

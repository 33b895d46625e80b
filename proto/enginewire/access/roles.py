"""What callers may do: three roles, and which one each RPC of ours needs. The one table of that.

Knows nothing about keys and gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Role(IntEnum):
    """Each may do what those below it may."""

    READ = 1
    """See what is served and how busy it is; never what others ask."""
    INFER = 2
    """Generate and embed."""
    ADMIN = 3
    """Drain, clean up, change adapters, end the requests of others, see their tokens in KV events."""

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower()


WORDS: Final[Mapping[str, Role]] = {role.word: role for role in Role}

ROLES: Final[Mapping[str, Mapping[str, Role]]] = {
    "enginewire.v1.EngineService": {
        "Generate": Role.INFER,
        "GenerateMultiplexed": Role.INFER,
        "Abort": Role.INFER,
        "Drain": Role.ADMIN,
        "Cleanup": Role.ADMIN,
    },
    "enginewire.v1.EmbeddingService": {"Embed": Role.INFER},
    "enginewire.v1.DiscoveryService": {
        "GetEngineInfo": Role.READ,
        "GetLoad": Role.READ,
        "WatchLoad": Role.READ,
        "GetTokenizer": Role.READ,
    },
    "enginewire.v1.KvService": {
        "GetKvEventSources": Role.READ,
        # Their tokens are those of everybody's prompts.
        "SubscribeKvEvents": Role.ADMIN,
    },
    "enginewire.v1.AdminService": {
        "ListAdapters": Role.READ,
        "LoadAdapter": Role.ADMIN,
        "UnloadAdapter": Role.ADMIN,
        "ResetPrefixCache": Role.ADMIN,
    },
    "enginewire.v1.BackendService": {"Generate": Role.INFER, "Embed": Role.INFER},
    "grpc.health.v1.Health": {"Check": Role.READ, "Watch": Role.READ},
    "xds.service.orca.v3.OpenRcaService": {"StreamCoreMetrics": Role.READ},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo": Role.READ},
    # Of SMG.
    "vllm.grpc.engine.VllmEngine": {
        "Generate": Role.INFER,
        "Embed": Role.INFER,
        "Abort": Role.INFER,
        "HealthCheck": Role.READ,
        "GetModelInfo": Role.READ,
        "GetServerInfo": Role.READ,
        "GetLoads": Role.READ,
        "GetTokenizer": Role.READ,
        "SubscribeKvEvents": Role.ADMIN,
        "FlushCache": Role.ADMIN,
        "StartProfile": Role.ADMIN,
        "StopProfile": Role.ADMIN,
    },
}


def role_of(method: str) -> Role:
    """What a call of `/package.Service/Method` needs; of an RPC that is not in the table, the most."""
    _, service, name = method.split("/")
    return ROLES.get(service, {}).get(name, Role.ADMIN)

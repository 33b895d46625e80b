"""The contract `enginewire.v1` under one name: `from enginewire import v1 as pb`.

Re-exports every message, enum, enum value, stub and servicer of the generated modules, the contract
revision and its digest. Holds no code of its own.
"""

from enginewire.v1.admin_service_pb2 import *  # noqa: F403
from enginewire.v1.admin_service_pb2_grpc import *  # noqa: F403
from enginewire.v1.backend_service_pb2 import *  # noqa: F403
from enginewire.v1.backend_service_pb2_grpc import *  # noqa: F403
from enginewire.v1.discovery_service_pb2 import *  # noqa: F403
from enginewire.v1.discovery_service_pb2_grpc import *  # noqa: F403
from enginewire.v1.embedding_service_pb2 import *  # noqa: F403
from enginewire.v1.embedding_service_pb2_grpc import *  # noqa: F403
from enginewire.v1.engine_service_pb2 import *  # noqa: F403
from enginewire.v1.engine_service_pb2_grpc import *  # noqa: F403
from enginewire.v1.error_pb2 import *  # noqa: F403
from enginewire.v1.kv_service_pb2 import *  # noqa: F403
from enginewire.v1.kv_service_pb2_grpc import *  # noqa: F403
from enginewire.v1.output_pb2 import *  # noqa: F403
from enginewire.v1.request_pb2 import *  # noqa: F403
from enginewire.v1.revision import (
    CONTRACT_REVISION as CONTRACT_REVISION,
    MINIMUM_CLIENT_REVISION as MINIMUM_CLIENT_REVISION,
    schema_digest as schema_digest,
)
from enginewire.v1.rules_pb2 import *  # noqa: F403

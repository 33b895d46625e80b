"""Every option of the backend's commands: flag, environment variable, config key, default and meaning.

Names follow the flags and request fields people know from vLLM and OpenAI. Knows nothing about how the
options are carried out.
"""

from enginewire.backend.config.generation import (
    MAX_UINT32,
    STANDARD_STREAM,
    GenerateOptions,
    JsonlOptions,
    SamplingDefaults,
)
from enginewire.backend.config.reaching import BackendOptions
from enginewire.backend.config.serving import (
    DEFAULT_HTTP_PORT,
    DEFAULT_MESSAGE_BYTES,
    DEFAULT_SERVE_PORT,
    ServeOptions,
    choose_address,
    load_serve,
)

__all__ = [
    "DEFAULT_HTTP_PORT",
    "DEFAULT_MESSAGE_BYTES",
    "DEFAULT_SERVE_PORT",
    "MAX_UINT32",
    "STANDARD_STREAM",
    "BackendOptions",
    "GenerateOptions",
    "JsonlOptions",
    "SamplingDefaults",
    "ServeOptions",
    "choose_address",
    "load_serve",
]

"""From the name a user gives to a folder on disk: a path, `builtin:demo`, or a hub name.

Touches the network only for a hub name. Knows nothing about what is inside the folder.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from enginewire.torch_engine.folder.folder import ModelLoadError

DEMO = "builtin:demo"
HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")


def resolve_model(name: str) -> Path:
    """The folder behind `name`; raises ModelLoadError when there is none."""
    if name == DEMO:
        return demo_path()
    path = Path(name).expanduser()
    if path.exists() or not is_hub_name(name):
        return path
    return download(name)


def demo_path() -> Path:
    """The folder of the model that ships with the project."""
    try:
        return Path(import_module("enginewire.server.demo_model").PATH)
    except ImportError as error:
        raise ModelLoadError(f"{DEMO}: not part of this installation") from error


def is_hub_name(name: str) -> bool:
    """True for `owner/model`; anything with more or fewer parts can only be a path."""
    parts = name.split("/")
    return len(parts) == 2 and all(part and not part.startswith((".", "~")) for part in parts)


def download(name: str) -> Path:
    """Fetch (or find in the local cache) the files of a hub model, with a progress bar."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_PATTERNS)))
    except HFValidationError as error:
        raise ModelLoadError(f"{name}: neither a folder nor a valid hub name") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        cause = type(error).__name__
        raise ModelLoadError(
            f"{name}: no such folder, not in the local hub cache, and the hub gave no answer ({cause});"
            " pass a model folder, or builtin:demo"
        ) from error

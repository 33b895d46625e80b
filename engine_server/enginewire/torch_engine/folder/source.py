"""From the name a user gives to a model on disk: a path, `builtin:demo`, or a hub name.

Touches the network only for a hub name.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from enginewire.torch_engine.folder.folder import ModelFolder, ModelLoadError

DEMO = "builtin:demo"
HUB_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")


def open_model(name: str) -> ModelFolder:
    """A folder or a GGUF file; raises ModelLoadError."""
    path = resolve_model(name)
    if path.suffix == ".gguf" and path.is_file():
        # It needs torch, which the folders of other engines do without.
        from enginewire.torch_engine.folder.gguf import open_gguf

        return open_gguf(path)
    return ModelFolder.open(path)


def resolve_model(name: str) -> Path:
    """The folder or file behind `name`; raises ModelLoadError when there is none."""
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

"""The files of the page, read once, and the headers that they are sent with.

Knows nothing about what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).with_name("web")
INDEX: Final = "page.html"
MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
}
# The page may run its own scripts and styles and talk to its own server, and nothing else. No file has a
# script or a style inside, so that none can be smuggled in.
POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Files:
    """The page and what it loads. Only what was there at the start is served."""

    def __init__(self) -> None:
        self._files = {
            path.relative_to(FOLDER).as_posix(): (path.read_bytes(), MEDIA_TYPES[path.suffix])
            for path in FOLDER.rglob("*")
            if path.suffix in MEDIA_TYPES
        }

    async def index(self, request: Request) -> Response:
        """The page itself."""
        return self._answer(INDEX)

    async def file(self, request: Request) -> Response:
        """Another file, by its place below that of the page. Raises HTTPException."""
        return self._answer(request.path_params["name"])

    def _answer(self, name: str) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        content, media_type = self._files[name]
        return Response(content, media_type=media_type, headers=HEADERS)

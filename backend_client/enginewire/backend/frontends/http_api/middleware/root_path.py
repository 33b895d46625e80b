"""Behind a proxy that serves this API below a path of its own, such as /llm. Knows nothing about routes."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Finds the routes whether the proxy takes its path off or passes it on."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        """`root_path` begins with a slash and does not end with one."""
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI, whose `path` begins with `root_path`."""
        path: str = scope["path"]
        if path == self._root_path and scope["method"] in ("GET", "HEAD"):
            # The addresses in the page are below the folder that the page is in.
            await RedirectResponse(f"{self._root_path}/")(scope, receive, send)
            return
        if path.startswith(f"{self._root_path}/"):
            path = path.removeprefix(self._root_path)
        scope = {**scope, "path": self._root_path + path, "root_path": self._root_path}
        await self._app(scope, receive, send)

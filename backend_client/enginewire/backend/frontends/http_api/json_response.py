"""Answers in one piece that are not generated: JSON values and refusals. Knows nothing about routes."""

from __future__ import annotations

from http import HTTPStatus

import orjson
from starlette.responses import Response

from enginewire.backend.frontends.http_api.refusal import Refusal


def as_json(value: object, status: int = HTTPStatus.OK) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(value), status, media_type="application/json")


def refused(refusal: Refusal) -> Response:
    """An error answer."""
    return Response(refusal.body, refusal.status, headers=refusal.headers, media_type="application/json")

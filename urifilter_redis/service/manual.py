"""The description of the API for programs, ``/openapi.json``, and for people: Swagger UI at ``/docs``.

Swagger UI's files come from the package ``fastapi-swagger``, so that the page asks no other origin.
"""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.responses import Response

from urifilter_redis.http_api import write_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

    from fastapi import FastAPI
    from starlette.requests import Request

    from urifilter_redis.service.endpoints import Service

__all__ = ["OPENAPI_PATH", "add_document", "foreign_files"]

OPENAPI_PATH = "/openapi.json"


def add_document(app: FastAPI, service: Service) -> None:
    """Add the OpenAPI document, which is rendered once; it wants a token if the service has tokens."""

    @functools.cache
    def rendered() -> bytes:
        return write_json(app.openapi())

    async def document(request: Request) -> Response:
        service.whose(request)
        return Response(rendered(), media_type="application/json")

    app.add_route(OPENAPI_PATH, document, methods=["GET"], include_in_schema=False)


def foreign_files() -> Iterator[Traversable]:
    """Yield the files of Swagger UI."""
    for name in ("swagger-ui.css", "swagger-ui-bundle.js"):
        yield files("fastapi_swagger") / "resources" / name

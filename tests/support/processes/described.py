"""Compares answers of a gateway with its OpenAPI description."""

import re
from typing import Any

import httpx
from jsonschema import Draft202012Validator

from lapse_gateway import openapi
from lapse_gateway.application import DESCRIBED


class Described:
    """The gateway's description at `/openapi.json`; `check` is an event hook of the HTTP client."""

    def __init__(self) -> None:
        self._document = openapi.description(DESCRIBED, users=True)
        self._paths = {
            re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))): operations
            for path, operations in self._document["paths"].items()
        }

    def check(self, answer: httpx.Response) -> None:
        """Check that an answer has a described status and type, and no fields beyond its schema."""
        request = answer.request
        operation = self._operation(request.method, request.url.path)
        if operation is None:
            return  # a page of the console, or an unknown path
        responses = operation["responses"]
        kind = "default" if answer.status_code >= 400 else str(answer.status_code)
        place = f"{request.method} {request.url.path}: {answer.status_code}"
        assert kind in responses, f"{place} is not described"
        contents = responses[kind].get("content", {})
        if answer.status_code == 204:
            assert not contents, place
            return
        given = answer.headers["content-type"].partition(";")[0]
        assert given in contents, f"{place}: {given} is not described"
        if given == "application/json":
            answer.read()
            schema = _closed({**contents[given]["schema"], "components": self._document["components"]})
            for fault in Draft202012Validator(schema).iter_errors(answer.json()):
                raise AssertionError(f"{place}: {fault.json_path}: {fault.message}")

    def _operation(self, method: str, path: str) -> Any:
        for pattern, operations in self._paths.items():
            if pattern.fullmatch(path):
                return operations.get(method.lower())
        return None


def _closed(schema: Any) -> Any:
    """Return a copy of a schema that allows no undescribed fields."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if "properties" in schema and isinstance(schema["properties"], dict):
        closed.setdefault("additionalProperties", False)
    return closed

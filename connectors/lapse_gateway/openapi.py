"""The description of the gateway in OpenAPI 3.1, generated from its table of operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from lapse import __version__
from lapse_gateway.operation import REFUSAL, Operation, obj

_PROBLEM: Final = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}


def description(operations: Sequence[Operation], *, users: bool, at: str = "") -> dict[str, Any]:
    """Return the OpenAPI description.

    Args:
        operations: operations to describe.
        users: whether requests need a user.
        at: prefix of all paths; empty = none.
    """
    models = [operation.model for operation in operations if operation.model is not None]
    refs, schemas = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(models)], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Any] = {}
    for operation in operations:
        description = _operation(operation, refs)
        if users and not operation.open:
            description["security"] = [{"basic": []}, {"bearer": []}]
        paths.setdefault(operation.path, {})[operation.method.lower()] = description
    error = {**obj(error=REFUSAL), "required": ["error"]}
    components: dict[str, Any] = {"schemas": {**schemas.get("$defs", {}), "Error": error}}
    if users:
        components["securitySchemes"] = {
            "basic": {"type": "http", "scheme": "basic", "description": "A user of lapse, and their key."},
            "bearer": {"type": "http", "scheme": "bearer", "description": "The key of a user of lapse."},
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lapse gateway",
            "version": __version__,
            "description": "Message lifetimes, leases and queues for Apache Kafka, over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        **({"servers": [{"url": at}]} if at else {}),
        "paths": paths,
        "components": components,
    }


def _operation(operation: Operation, refs: Any) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", operation.path)
    inside = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    headers = [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in operation.headers.items()
    ]
    described: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', operation.path)}".rstrip("_"),
        "summary": operation.summary,
        "parameters": [*inside, *(one.described() for one in operation.parameters), *headers],
        "responses": {**_answers(operation), "default": {"description": "It was refused.", **_PROBLEM}},
    }
    if operation.description:
        described["description"] = operation.description
    if operation.raw_body:
        described["requestBody"] = {"content": {"application/octet-stream": {}}}
    elif operation.model is not None:
        schema = refs[(operation.model, "validation")]
        described["requestBody"] = {
            "required": not operation.optional_body,
            "content": {"application/json": {"schema": schema}},
        }
    return described


def _answers(operation: Operation) -> dict[str, Any]:
    """Return the descriptions of answers other than refusals, by status."""
    content: dict[str, Any] = {}
    if operation.answer is not None or operation.status == 200:
        schema = {"type": "string"} if operation.answer is None else operation.answer
        content = {operation.content: {"schema": schema}}
    if operation.raw:
        content["application/octet-stream"] = {}
    answers: dict[str, Any] = {}
    for status, text in {operation.status: operation.summary, **operation.further}.items():
        answers[str(status)] = {"description": text, **({"content": content} if content and status != 204 else {})}
    return answers

"""Operations: what can be asked over HTTP. Routes, checks and the OpenAPI description come from one table."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from lapse_gateway import body as bodies
from lapse_gateway.fault import STATUSES
from lapse_gateway.gateway import Gateway
from lapse_gateway.parameter import Parameter
from lapse_gateway.user import Caller

Model = TypeVar("Model", bound=BaseModel)

audit: Final = logging.getLogger("lapse_gateway.audit")


@dataclass(slots=True, kw_only=True)
class Call:
    """One request, once it was let in.

    Attributes:
        request: as it came.
        gateway: what all requests share.
        caller: who sends it.
        path: the parts of its path, by name.
        parameters: what stands behind the question mark, by name; read.
        body: what it carries; empty where the operation takes no body.
    """

    request: Request
    gateway: Gateway
    caller: Caller
    path: Mapping[str, str]
    parameters: Mapping[str, Any]
    body: bytes = field(repr=False)

    def decoded(self, model: type[Model]) -> Model:
        """The body as a JSON object.

        Raises:
            Fault: it is none, or not what it has to be.
        """
        return bodies.decode(self.body, model)

    async def gone(self) -> None:
        """Wait until the caller has gone, or the gateway ends."""

        async def left() -> None:
            while (await self.request.receive())["type"] != "http.disconnect":
                pass

        waits = [asyncio.ensure_future(left()), asyncio.ensure_future(self.gateway.stopping.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def record(self, what: str, entity: str, **facts: Any) -> None:
        """Write an audit record: who has changed what."""
        client = self.request.client
        told = {"user": self.caller.name, "from": client.host if client else "", "did": what, "entity": entity, **facts}
        if len(self.gateway.deployments) > 1:
            told["deployment"] = self.gateway.name
        audit.info("%s", json.dumps(told), extra={"facts": told})  # a log in JSON has it as an object


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that can be asked.

    Attributes:
        method: of HTTP.
        path: with names in braces.
        summary: one line.
        says: more about it.
        handler: what does it.
        parameters: behind the question mark.
        model: the JSON object in its body; None without one.
        raw_body: whether the body is a payload, byte by byte.
        status: of an answer that is no refusal.
        answer: JSON schema of that answer; None = it is not JSON.
        content: its content type.
        raw: whether the answer may be a payload, byte by byte, if the request asks for one.
        further: other statuses of answers that are no refusals, and what each means; 204 has no body.
        headers: what a request may say in headers of its own, each with its meaning.
        part: whether it is a part of a page of the console.
        changes: whether it changes something: a gateway that is read only refuses it.
        open: whether everybody may ask, without a user.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    says: str = ""
    parameters: tuple[Parameter, ...] = ()
    model: type[BaseModel] | None = None
    optional_body: bool = False
    raw_body: bool = False
    status: int = 200
    answer: Mapping[str, Any] | None = None
    content: str = "application/json"
    raw: bool = False
    further: Mapping[int, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    part: bool = False
    changes: bool = False
    open: bool = False

    @property
    def for_people(self) -> bool:
        """Whether it belongs to the console."""
        return self.content == "text/html"

    @property
    def takes_body(self) -> bool:
        """Whether a body means something."""
        return self.raw_body or self.model is not None


def answered(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON, with a line feed behind it for people at a terminal."""
    return Response(
        orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE),
        status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def obj(**properties: Any) -> dict[str, Any]:
    """A JSON schema of an object."""
    return {"type": "object", "properties": properties}


def counted(**properties: Any) -> dict[str, Any]:
    """A JSON schema of an object of counts, which may have further ones."""
    return {**obj(**properties), "additionalProperties": WHOLE}


def listed(items: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema of an array."""
    return {"type": "array", "items": items}


TEXT: Final = {"type": "string"}
FLAG: Final = {"type": "boolean"}
WHOLE: Final = {"type": "integer"}
INSTANT: Final = {"type": ["integer", "null"], "description": "ms since the epoch; null without one"}
REFUSAL: Final = {
    **obj(
        code={**TEXT, "description": "For programs.", "examples": sorted(STATUSES)},
        text={**TEXT, "description": "For people; may change."},
    ),
    "required": ["code", "text"],
}
"""What is told of a refusal: of a request, or of a part of it."""

"""The operations of the gateway. Routes, checks and the OpenAPI description come from one table of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from lapse_gateway import body as bodies
from lapse_gateway.fault import STATUSES, Fault
from lapse_gateway.gateway import Gateway
from lapse_gateway.parameter import Parameter
from lapse_gateway.subscription import first_of
from lapse_gateway.user import Caller

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

audit: Final = logging.getLogger("lapse_gateway.audit")


@dataclass(slots=True, kw_only=True)
class Call:
    """One admitted request.

    Attributes:
        request: the HTTP request.
        gateway: the gateway that serves it.
        caller: the sender.
        path: the variable parts of its path, by name.
        parameters: the parsed query parameters, by name.
        body: its body; empty if the operation takes none.
    """

    request: Request
    gateway: Gateway
    caller: Caller
    path: Mapping[str, str]
    parameters: Mapping[str, Any]
    body: bytes = field(repr=False)

    def decoded(self, model: type[Model]) -> Model:
        """Decode the body, a JSON object, into a model.

        Raises:
            Fault: the body is not a JSON object, or does not fit the model.
        """
        return bodies.decode(self.body, model)

    async def gone(self) -> None:
        """Wait until the caller disconnects, or the gateway stops."""

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

    async def while_waited(self, wanted: Awaitable[T]) -> T:
        """Return a result that takes long, unless the caller disconnects first, or the gateway stops.

        Raises:
            Fault: nobody waits for it any more. It is cancelled.
        """
        found = await first_of(wanted, self.gone)
        if found is None:
            raise Fault("stopping", "the gateway ends. Ask again")
        return found

    def record(self, what: str, entity: str, **facts: Any) -> None:
        """Write an audit record that says who changed what."""
        client = self.request.client
        entry = {
            "user": self.caller.name,
            "from": client.host if client else "",
            "did": what,
            "entity": entity,
            **facts,
        }
        if len(self.gateway.deployments) > 1:
            entry["deployment"] = self.gateway.name
        audit.info("%s", json.dumps(entry), extra={"facts": entry})  # a JSON log gets it as an object

    @contextlib.contextmanager
    def recording(self, what: str, entity: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Write an audit record behind the block, which changes something. It may add to the yielded facts.

        If the block fails, the change may have been made nevertheless, as a whole or in part. The record then has the
        error as its `fault`.
        """
        try:
            yield facts
        except asyncio.CancelledError:
            self.record(what, entity, **facts, fault="the gateway ended meanwhile")
            raise
        except BaseException as error:
            self.record(what, entity, **facts, fault=str(error) or type(error).__name__)
            raise
        self.record(what, entity, **facts)


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation over HTTP.

    Attributes:
        method: HTTP method.
        path: path with variable parts in braces.
        summary: description in one line.
        description: further description.
        handler: coroutine function that carries it out.
        parameters: its query parameters.
        model: model of the JSON object in its body; None = no JSON body.
        optional_body: whether the JSON body may be missing.
        raw_body: whether the body is a payload, byte by byte.
        status: status of a successful answer.
        answer: JSON schema of that answer; None = it is not JSON.
        content: content type of that answer.
        raw: whether the answer may be a payload, byte by byte, if the request asks for it.
        further: other statuses of successful answers, with their meanings; 204 has no body.
        headers: further headers of requests, with their meanings.
        part: whether it returns a part of a page of the console.
        changes: whether it changes something, so that a read-only gateway refuses it.
        open: whether it needs no user.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    description: str = ""
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
        return self.part or self.content == "text/html"

    @property
    def takes_body(self) -> bool:
        """Whether the operation takes a body."""
        return self.raw_body or self.model is not None


def answered(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON, with a line feed at the end for terminals."""
    return Response(
        orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE),
        status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def obj(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object."""
    return {"type": "object", "properties": properties}


def counted(**properties: Any) -> dict[str, Any]:
    """Return the JSON schema of an object of counts, which may have further counts."""
    return {**obj(**properties), "additionalProperties": WHOLE}


def listed(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an array."""
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
"""The JSON schema of a refusal of a request, or of a part of it."""

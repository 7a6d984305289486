"""The ASGI application: it admits, parses, carries out and answers each request, or refuses it in one sentence."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, Router

from lapse import __version__
from lapse.core.error_code import ErrorCode
from lapse.core.near_name import did_you_mean
from lapse_client.error import LapseError, UnknownEntity
from lapse_gateway import (
    body,
    called_host,
    letters,
    looking,
    metrics,
    openapi,
    parameter,
    publishing,
    receiving,
    rewinding,
    settling,
    sow,
    subscribers,
    tail,
)
from lapse_gateway.console import letters as letter_pages
from lapse_gateway.console import overview, queues, rewinds, schedule, scheduled_updates, topics
from lapse_gateway.console.page import refused
from lapse_gateway.fault import Fault, fault_of
from lapse_gateway.gateway import Gateway
from lapse_gateway.operation import FLAG, TEXT, Call, Operation, answered, obj
from lapse_gateway.request_target import EncodedNames, decoded
from lapse_gateway.user import Caller

_EVENTS: Final = "text/event-stream"
LARGEST_HEAD: Final = 64 << 10
"""The most bytes in the headers of a request."""

_MOST_PARAMETERS: Final = 1_000
_SAME: Final = frozenset({"same-origin", "none", ""})
"""Values of Sec-Fetch-Site for requests that no other site has made."""


async def _index(call: Call) -> Response:
    return answered({"lapse": __version__, "read_only": call.gateway.settings.read_only, "openapi": "/openapi.json"})


async def _health(call: Call) -> Response:
    return answered({"status": "ok"})


async def _ready(call: Call) -> Response:
    await asyncio.to_thread(call.gateway.connection.await_broker, 3.0)
    return answered({"status": "ok"})


async def _metrics(call: Call) -> Response:
    return Response(metrics.text(call.gateway.deployments), media_type=metrics.CONTENT)


async def _description(call: Call) -> Response:
    return answered(openapi.description(DESCRIBED, users=bool(call.gateway.users.users), at=call.gateway.at))


_INDEX: Final = obj(lapse=TEXT, read_only=FLAG, openapi=TEXT)

OPERATIONS: Final[Sequence[Operation]] = (
    *publishing.OPERATIONS,
    *receiving.OPERATIONS,
    *settling.OPERATIONS,
    *looking.OPERATIONS,
    *subscribers.OPERATIONS,
    *rewinding.OPERATIONS,
    *letters.OPERATIONS,
    *tail.OPERATIONS,
    *sow.OPERATIONS,
    *overview.OPERATIONS,
    *queues.OPERATIONS,
    *rewinds.OPERATIONS,
    *schedule.OPERATIONS,
    *scheduled_updates.OPERATIONS,
    *letter_pages.OPERATIONS,
    *topics.OPERATIONS,
    Operation(method="GET", path="/v1", summary="Say what this is", handler=_index, answer=_INDEX, open=True),
    Operation(
        method="GET",
        path="/openapi.json",
        summary="Describe all operations",
        handler=_description,
        answer={},
        open=True,
    ),
    Operation(
        method="GET",
        path="/health",
        summary="Say that the gateway runs",
        handler=_health,
        answer=obj(status=TEXT),
        open=True,
    ),
    Operation(
        method="GET",
        path="/ready",
        summary="Say that a broker answers",
        handler=_ready,
        answer=obj(status=TEXT),
        open=True,
    ),
    Operation(
        method="GET",
        path="/metrics",
        summary="Return the gateway's own figures for Prometheus",
        description="Requests by path and status, how long they took, and what is open. No names of entities or users.",
        handler=_metrics,
        content="text/plain",
        open=True,
    ),
)
"""All operations of the gateway."""

DESCRIBED: Final = [one for one in OPERATIONS if not one.for_people]
"""The operations for programs. The others belong to the console."""


def application(gateway: Gateway) -> Starlette:
    """Return the application for a gateway and the other deployments at its address."""

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as running:
            for one in gateway.deployments:
                await running.enter_async_context(one.running())
            yield

    beside = [one for one in gateway.deployments if one is not gateway]
    routes: list[BaseRoute] = [
        *_routes(gateway),
        *(Mount(one.at, Router(_routes(one), redirect_slashes=False)) for one in beside),
    ]
    found = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(EncodedNames)],
        exception_handlers={HTTPException: _astray, Exception: _failed},
    )
    found.router.redirect_slashes = False  # a redirected POST would be a surprise
    return found


def _routes(gateway: Gateway) -> list[Route]:
    return [Route(one.path, _endpoint(gateway, one), methods=[one.method]) for one in OPERATIONS]


def _endpoint(gateway: Gateway, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        began_s = asyncio.get_running_loop().time()

        def note(status: int) -> None:
            took_s = asyncio.get_running_loop().time() - began_s
            gateway.requests.note(operation.method, operation.path, status, took_s)

        try:
            response = await answer(request)
        except Exception:  # `_failed` answers it
            note(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise
        note(response.status_code)
        return response

    async def answer(request: Request) -> Response:
        caller = gateway.authenticator.everybody
        try:
            call = await _call(gateway, operation, request)
            caller = call.caller
            return await operation.handler(call)
        except Fault as refusal:
            fault = refusal
        except UnknownEntity as error:
            fault = fault_of(error.among(caller.may_see_some))
        except (LapseError, ValueError) as error:
            fault = fault_of(error)
        except asyncio.CancelledError:
            if not gateway.stopping.is_set():
                raise
            fault = Fault("stopping", "the gateway ends; whether the request was carried out is not known. Ask again")
        return refused(fault, operation.part, gateway.at) if operation.for_people else _refused(fault)

    return endpoint


async def _call(gateway: Gateway, operation: Operation, request: Request) -> Call:
    """Admit a request, and parse it.

    Raises:
        Fault: the request is refused.
    """
    if request.method != operation.method and operation.content == _EVENTS:
        raise Fault("method_not_allowed", f"{request.method}: a stream is asked for by {operation.method}")
    if sum(len(name) + len(value) for name, value in request.headers.raw) > LARGEST_HEAD:
        raise Fault("too_large", f"the headers have more than {LARGEST_HEAD:,} bytes", body.CLOSE)
    if {"content-length", "transfer-encoding"} <= set(request.headers):
        raise Fault(
            ErrorCode.MALFORMED, "Content-Length and Transfer-Encoding contradict: send one of them", body.CLOSE
        )
    caller = _let_in(gateway, operation, request)
    if operation.changes:
        if gateway.settings.read_only:
            raise Fault("read_only", f"this gateway is read only: it does not {operation.method} {operation.path}")
        _check_origin(request)
    parameters = parameter.read_all(operation.parameters, _query(request))
    content = b""
    if request.method != "GET":
        content = await body.read(request, gateway.settings.largest_body, gateway.settings.body_timeout_s)
    if content and not operation.takes_body:
        raise Fault(ErrorCode.MALFORMED, f"{operation.path} takes no body; found one of {len(content):,} bytes")
    return Call(
        request=request,
        gateway=gateway,
        caller=caller,
        path={name: decoded(text) for name, text in request.path_params.items()},
        parameters=parameters,
        body=content,
    )


def _let_in(gateway: Gateway, operation: Operation, request: Request) -> Caller:
    """Return the sender of a request. Failed logins count against the rate of their address.

    A right key is accepted even if that is used up. Otherwise one program could lock out all others behind its proxy.
    """
    address = request.client.host if request.client else ""
    if operation.open:
        gateway.rate.check(address)
        return gateway.authenticator.everybody
    try:
        caller = gateway.authenticator.caller(request.headers.get("authorization"))
    except Fault:
        gateway.rate.check(address)
        raise
    gateway.rate.check(caller.name or address)
    if not caller.name:
        called_host.check(request.headers.get("host"), gateway.settings.names)
    return caller


def _check_origin(request: Request) -> None:
    """Check that no page of another site has made a request, because a browser would send a user's key with it.

    Raises:
        Fault: a page of another site has made it.
    """
    origin = request.headers.get("origin")
    if (origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")) or (
        request.headers.get("sec-fetch-site", "") not in _SAME
    ):
        raise Fault("other_origin", f"a page of another site ({(origin or 'unknown')[:100]}) may change nothing here")


def _query(request: Request) -> list[tuple[str, str]]:
    """Parse the query string.

    Raises:
        Fault: it is not UTF-8, or has too many parameters.
    """
    try:
        text = bytes(request.scope["query_string"]).decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS)
    except UnicodeDecodeError as error:
        raise Fault(ErrorCode.INVALID_ARGUMENT, "the address: the part behind ? is no percent-encoded UTF-8") from error
    except ValueError as error:
        raise Fault(ErrorCode.INVALID_ARGUMENT, f"the address has more than {_MOST_PARAMETERS} parameters") from error


def _refused(fault: Fault) -> Response:
    return answered(fault.as_dict(), fault.status, fault.headers)


async def _astray(request: Request, error: Exception) -> Response:
    """Answer a request for an unknown path or method."""
    assert isinstance(error, HTTPException)
    path = request.url.path[:100]
    asked = request.url.path.removeprefix(request.scope.get("root_path", ""))
    fault = Fault("unknown_path", f"there is no {path}{_path_hint(asked)}; /openapi.json names what there is")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = sorted(one.method for one in OPERATIONS if _pattern(one.path).fullmatch(asked))
        text = f"{path} is asked for by {' or '.join(allowed)}, not by {request.method[:20]}"
        fault = Fault("method_not_allowed", text, {"Allow": ", ".join(allowed)})
    # A browser that opens a page accepts HTML first. Programs accept JSON or anything, or say nothing.
    people = request.headers.get("accept", "").startswith("text/html")
    return refused(fault, False, "") if people else _refused(fault)


def _path_hint(asked: str) -> str:
    """Return a hint with a similar path, filled with the names of the requested one."""
    bare = asked.rstrip("/")
    if bare != asked and any(_pattern(one.path).fullmatch(bare) for one in DESCRIBED):
        return f" (did you mean {bare[:100]!r}?)"
    parts = asked.split("/")
    known = set()
    for one in DESCRIBED:
        places = one.path.split("/")
        if len(places) == len(parts) and "" not in parts[1:]:
            known.add("/".join(part if "{" in place else place for place, part in zip(places, parts, strict=True)))
    return did_you_mean(asked, known)


@functools.cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))


async def _failed(_: Request, error: Exception) -> Response:
    """Answer a request on which the gateway itself failed. The log has the details."""
    return _refused(Fault("failed", f"the gateway failed ({type(error).__name__}); its log says where"))

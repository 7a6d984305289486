"""Pages of the console: templates, and files beside them."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from lapse import __version__
from lapse_gateway.console import text
from lapse_gateway.fault import Fault
from lapse_gateway.operation import Call

_HERE: Final = Path(__file__).parent
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FILES: Final = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in (_HERE / "static").iterdir()
    if path.suffix in _TYPES
}


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(
    instant=text.instant,
    span=text.span,
    brief=text.brief,
    payload=text.payload,
    bytes=text.of_bytes,
    header=text.header,
    visible=text.visible,
    is_text=text.is_text,
)


def rendered(call: Call, template: str, status: int = 200, /, **shown: Any) -> HTMLResponse:
    """A page, or a part of one."""
    gateway = call.gateway
    filled = _ENVIRONMENT.get_template(template).render(
        at=gateway.at,
        deployments=[(one.name, one.at) for one in gateway.deployments],
        read_only=gateway.settings.read_only,
        user=call.caller.name,
        version=__version__,
        cluster=gateway.connection.bootstrap_servers,
        now_ms=int(gateway.connection.clock.now_ms()),
        **shown,
    )
    return HTMLResponse(filled, status, headers=_HEADERS)


def refused(fault: Fault, part: bool, at: str) -> HTMLResponse:
    """A refusal as a page; or as a part of one, which is shown in its place.

    Args:
        fault: what is refused, and why.
        part: whether a part of a page was asked for.
        at: where the pages of the deployment begin.
    """
    template = "refused_part.html" if part else "refused.html"
    filled = _ENVIRONMENT.get_template(template).render(at=at, fault=fault, version=__version__)
    # htmx shows a part only where the status is a good one.
    shown = part and fault.status != HTTPStatus.UNAUTHORIZED
    return HTMLResponse(filled, 200 if shown else fault.status, headers={**_HEADERS, **fault.headers})


async def file(call: Call) -> Response:
    """A file beside the pages."""
    found = _FILES.get(call.path["name"])
    if found is None:
        raise Fault("unknown_path", f"there is no file {call.path['name'][:100]}")
    content, kind = found
    return Response(content, media_type=kind, headers={**_HEADERS, "Cache-Control": "max-age=3600"})

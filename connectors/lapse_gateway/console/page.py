"""Pages of the console: templates, what they show instants and sizes as, and files beside them."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from lapse import __version__
from lapse_gateway.fault import Fault
from lapse_gateway.operation import Call

_HERE: Final = Path(__file__).parent
_LONGEST: Final = 100_000
"""Characters of a payload that a page shows."""

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


def _instant(at_ms: int | None) -> str:
    """An instant, UTC."""
    if at_ms is None or at_ms < 0:
        return "–"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _span(ms: int | None) -> str:
    """A length of time, in its two largest units."""
    if ms is None:
        return "–"
    seconds, found = ms / 1000, list[str]()
    if abs(seconds) < 60:
        return f"{seconds:.1f} s"
    rest = int(abs(seconds))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if rest >= size and len(found) < 2:
            found.append(f"{rest // size} {unit}")
        rest %= size
    return " ".join(found[:2])


def _brief(ms: float) -> str:
    """A length of time in one unit."""
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def _payload(value: bytes | None) -> str:
    """A payload for people: JSON is set out, text is text, bytes are hexadecimal."""
    if value is None:
        return "no payload"
    try:
        text = orjson.dumps(orjson.loads(value), option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONDecodeError:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.hex(" ", 2)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(value):,} bytes)"


def _bytes(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "backslashreplace")


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(instant=_instant, span=_span, brief=_brief, payload=_payload, bytes=_bytes)


def rendered(call: Call, template: str, status: int = 200, /, **shown: Any) -> HTMLResponse:
    """A page, or a part of one."""
    gateway = call.gateway
    text = _ENVIRONMENT.get_template(template).render(
        at=gateway.at,
        deployments=[(one.name, one.at) for one in gateway.deployments],
        read_only=gateway.settings.read_only,
        user=call.caller.name,
        version=__version__,
        cluster=gateway.connection.bootstrap_servers,
        now_ms=int(gateway.connection.clock.now_ms()),
        **shown,
    )
    return HTMLResponse(text, status, headers=_HEADERS)


def refused(fault: Fault, part: bool, at: str) -> HTMLResponse:
    """A refusal as a page; or as a part of one, which is shown in its place.

    Args:
        fault: what is refused, and why.
        part: whether a part of a page was asked for.
        at: where the pages of the deployment begin.
    """
    template = "refused_part.html" if part else "refused.html"
    text = _ENVIRONMENT.get_template(template).render(at=at, fault=fault, version=__version__)
    # htmx shows a part only where the status is a good one.
    shown = part and fault.status != HTTPStatus.UNAUTHORIZED
    return HTMLResponse(text, 200 if shown else fault.status, headers={**_HEADERS, **fault.headers})


async def file(call: Call) -> Response:
    """A file beside the pages."""
    found = _FILES.get(call.path["name"])
    if found is None:
        raise Fault("unknown_path", f"there is no file {call.path['name'][:100]}")
    content, kind = found
    return Response(content, media_type=kind, headers={**_HEADERS, "Cache-Control": "max-age=3600"})

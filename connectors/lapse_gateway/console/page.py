"""Pages of the console: templates and static files."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
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
_FOR_EVER: Final = "max-age=31536000, immutable"
_BACK_S: Final = 5
"""A page that could not be shown for the moment reloads after this time, in seconds."""

_FOR_THE_MOMENT: Final = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


@dataclass(frozen=True, slots=True)
class _File:
    """A static file.

    Attributes:
        content: content of the file.
        packed: content compressed with gzip.
        kind: media type.
        version: a hash of the content. It is part of the URL, so that a browser may cache the file forever.
    """

    content: bytes
    packed: bytes
    kind: str
    version: str

    @classmethod
    def read(cls, path: Path) -> _File:
        content = path.read_bytes()
        if path.name == "console.css":  # one file, as a browser waits for each
            content = files("lapse").joinpath("design.css").read_bytes() + content
        version = hashlib.sha256(content).hexdigest()[:12]
        return cls(content, gzip.compress(content, mtime=0), _TYPES[path.suffix], version)


_FILES: Final = {path.name: _File.read(path) for path in (_HERE / "static").iterdir() if path.suffix in _TYPES}


@pass_context
def _static(context: Context, name: str) -> str:
    """Return the URL of a static file."""
    return f"{context['at']}/console/static/{name}?v={_FILES[name].version}"


_ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(
    instant=text.instant,
    second=text.second,
    span=text.span,
    brief=text.brief,
    coded=text.coded,
    payload=text.payload,
    bytes=text.of_bytes,
    header=text.header,
    visible=text.visible,
    is_text=text.is_text,
    static=_static,
)

# Compiled at import: this takes 0.1 s, which would delay the first pages.
_TEMPLATES: Final = {name: _ENVIRONMENT.get_template(name) for name in _ENVIRONMENT.list_templates(["html"])}


def rendered(call: Call, template: str, status: int = 200, /, **shown: Any) -> HTMLResponse:
    """Render a page, or a part of one."""
    gateway = call.gateway
    filled = _TEMPLATES[template].render(
        at=gateway.at,
        deployments=[(one.name, one.at) for one in gateway.deployments],
        read_only=gateway.settings.read_only,
        user=call.caller.name,
        version=__version__,
        cluster=gateway.connection.bootstrap_servers,
        caller=call.caller,
        this_client=gateway.connection.client,
        now_ms=int(gateway.connection.clock.now_ms()),
        **shown,
    )
    return HTMLResponse(filled, status, headers=_HEADERS)


def refused(fault: Fault, part: bool, at: str) -> HTMLResponse:
    """Render a refusal as a page, or as the requested part of one.

    Args:
        fault: the refusal.
        part: whether a part of a page was requested.
        at: prefix of the deployment's paths.
    """
    template = "refused_part.html" if part else "refused.html"
    refresh_s = _BACK_S if fault.status in _FOR_THE_MOMENT else None
    filled = _TEMPLATES[template].render(at=at, fault=fault, version=__version__, refresh_s=refresh_s)
    # htmx shows a part only if the status is a success.
    shown = part and fault.status != HTTPStatus.UNAUTHORIZED
    return HTMLResponse(filled, 200 if shown else fault.status, headers={**_HEADERS, **fault.headers})


async def file(call: Call) -> Response:
    """Return a static file."""
    found = _FILES.get(call.path["name"])
    if found is None:
        raise Fault("unknown_path", f"there is no file {call.path['name'][:100]}")
    headers = {**_HEADERS, "Vary": "Accept-Encoding"}
    if call.parameters["v"] == found.version:
        headers["Cache-Control"] = _FOR_EVER
    content = found.content
    if "gzip" in call.request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = found.packed, "gzip"
    return Response(content, media_type=found.kind, headers=headers)

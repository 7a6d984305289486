"""Request targets in absolute form, `GET http://host/path`, as proxies send them, and with encoded names."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_SCHEMES: Final = (b"http://", b"https://")
_HOST: Final = b"host"


class AbsoluteTargets:
    """Reduces an absolute target to its path, and sets the header `Host` to the target's host (RFC 9112, 3.2.2).

    Args:
        application: the application that answers.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and scope["raw_path"].lower().startswith(_SCHEMES):
            scope = _relative(scope)
        await self._application(scope, receive, send)


class EncodedNames:
    """Keeps an encoded slash (`%2F`) as a part of its name, because it separates nothing (RFC 3986, 2.2).

    Servers decode a whole path before it is split. With this class, the application gets a path in which only `/` and
    `%` of names are encoded. `decoded` decodes such a name.

    Args:
        application: the application that answers.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http" and b"%" in scope["raw_path"]:
            names = scope["raw_path"].decode("ascii", "replace").split("/")
            scope = {**scope, "path": "/".join(map(_encoded, names))}
        await self._application(scope, receive, send)


def decoded(name: str) -> str:
    """Decode a name of the path."""
    return name.replace("%2F", "/").replace("%25", "%")


def _encoded(name: str) -> str:
    return unquote(name).replace("%", "%25").replace("/", "%2F")


def _relative(scope: Scope) -> Scope:
    authority, slash, rest = scope["raw_path"].partition(b"//")[2].partition(b"/")
    path = slash + rest or b"/"
    host = authority.rpartition(b"@")[2]
    headers = [(name, value) for name, value in scope["headers"] if name != _HOST]
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii")), "headers": [(_HOST, host), *headers]}

"""Payloads, keys and headers of messages in JSON and HTTP headers, without loss of bytes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import orjson
from pydantic import BaseModel, ConfigDict

from lapse.core.error_code import ErrorCode
from lapse_gateway.exact_number import dumped
from lapse_gateway.fault import Fault

_TRACE: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
"""The form of the header `traceparent`, by W3C's Trace Context."""

HEADER_PREFIX: Final = "lapse-header-"
"""Prefix of an HTTP header that carries a message's header."""

_NAME_CHARACTERS: Final = "!#$&'*+-.^_`|~"
"""Characters that an HTTP header's name may have beside letters, digits and the percent sign."""

_PLAIN: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")

Headers = Iterable[tuple[str, bytes | None]]
_CONTENTS: Final = frozenset({"value", "text", "base64"})


class Content(BaseModel):
    """A payload in a request, in one of three forms.

    Attributes:
        value: the payload as JSON.
        text: the payload as text.
        base64: the payload as bytes in Base64.
    """

    model_config = ConfigDict(extra="forbid")

    value: Any = None
    text: str | None = None
    base64: str | None = None

    @property
    def contents(self) -> frozenset[str]:
        """The forms that are given."""
        return _CONTENTS & self.model_fields_set

    def content(self) -> bytes | None:
        """Return the payload; None if no form is given.

        Raises:
            Fault: the Base64 is not valid, or `value` is nested too deeply.
        """
        if "value" in self.model_fields_set:
            try:
                return dumped(self.value)
            except orjson.JSONEncodeError as error:
                deep = "value: it is nested more than 254 levels deep; send it as text"
                raise Fault(ErrorCode.MALFORMED, deep) from error
        if self.text is not None:
            return self.text.encode()
        return None if self.base64 is None else from_base64("base64", self.base64)


def shown(value: bytes | None) -> dict[str, Any]:
    """Return a payload as `value` if it is JSON, else `text` if it is UTF-8, else `base64`; nothing for None."""
    if value is None:
        return {}
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        pass
    else:
        return {"value": orjson.Fragment(value)}
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def key_shown(key: bytes | None) -> dict[str, Any]:
    """Return a key as `key` if it is UTF-8 or None, else as `key_base64`."""
    try:
        return {"key": None if key is None else key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": base64.b64encode(key or b"").decode()}


def headers_shown(headers: Headers) -> list[list[Any]]:
    """Return headers as pairs of name and value, in order. A value that is not UTF-8 is `{"base64": …}`."""
    shown_ones: list[list[Any]] = []
    for name, value in headers:
        try:
            shown_ones.append([name, None if value is None else value.decode()])
        except UnicodeDecodeError:
            shown_ones.append([name, {"base64": base64.b64encode(value or b"").decode()}])
    return shown_ones


MESSAGE: Final[dict[str, Any]] = {
    "key": {"type": ["string", "null"]},
    "key_base64": {"type": "string", "description": "the key, if it is no text"},
    "headers": {"type": "array", "items": {"type": "array"}},
    "value": {"description": "the payload, if it is JSON"},
    "text": {"type": "string", "description": "the payload, if it is text and no JSON"},
    "base64": {"type": "string", "description": "the payload otherwise"},
}
"""JSON schemas of the fields that `message_shown` writes."""


def message_shown(key: bytes | None, headers: Headers, value: bytes | None) -> dict[str, Any]:
    """Return the fields of a message for JSON: its key, its headers and its payload."""
    fields = key_shown(key)
    fields["headers"] = headers_shown(headers)
    fields.update(shown(value))
    return fields


def from_base64(field: str, text: str) -> bytes:
    """Decode Base64.

    Raises:
        Fault: the text is not valid Base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Fault(ErrorCode.INVALID_ARGUMENT, f"{field}: this is no Base64: {error}") from error


def in_http_header(value: bytes) -> str:
    """Encode bytes as the value of an HTTP header: `%` and all but printable ASCII are percent-encoded.

    So are spaces at the beginning and the end, which belong to the value, and which HTTP drops.
    """
    text = quote(value, safe=_PLAIN)
    inner = text.strip(" ")
    before = len(text) - len(text.lstrip(" "))
    return "%20" * before + inner + "%20" * (len(text) - len(inner) - before)


def message_headers_in_http(headers: Headers) -> list[tuple[str, str]]:
    """Encode a message's headers as HTTP headers. A null value becomes an empty one."""
    return [
        (f"{HEADER_PREFIX}{quote(name, safe=_NAME_CHARACTERS)}", in_http_header(value or b""))
        for name, value in headers
    ]


def message_headers_from_http(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, bytes]]:
    """Decode a message's headers from those of a request. Their names are in lower case, as HTTP ignores case.

    Raises:
        Fault: a name is empty, or not UTF-8.
    """
    found: list[tuple[str, bytes]] = []
    for raw, value in headers:
        name = raw.decode("latin-1").lower()
        if not name.startswith(HEADER_PREFIX):
            continue
        try:
            own = unquote_to_bytes(name.removeprefix(HEADER_PREFIX)).decode()
        except UnicodeDecodeError as error:
            raise Fault(ErrorCode.INVALID_ARGUMENT, f"header {name}: its name is no UTF-8") from error
        if not own:
            raise Fault(
                ErrorCode.INVALID_ARGUMENT, "header Lapse-Header-: put the name of the message's header behind it"
            )
        found.append((own, unquote_to_bytes(value)))
    return found


def trace_of(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, bytes]]:
    """Return a request's trace context as headers of a message. An invalid one is dropped, as W3C demands.

    Args:
        raw: the request's headers, with names in lower case.
    """
    context = {name: value for name, value in raw if name in (b"traceparent", b"tracestate")}
    if not _TRACE.fullmatch(context.get(b"traceparent", b"")):
        return []
    return [(name.decode(), value) for name, value in sorted(context.items())]


def with_trace(
    headers: list[tuple[str, bytes | None]], trace: list[tuple[str, bytes]]
) -> list[tuple[str, bytes | None]]:
    """Add the trace context of the request to a message's headers, unless they have one."""
    if not trace or any(name.lower() == "traceparent" for name, _ in headers):
        return headers
    return [*headers, *trace]

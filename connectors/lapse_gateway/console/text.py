"""Formats values for pages: instants, durations, payloads, keys and headers."""

from __future__ import annotations

import re
from typing import Final

import orjson
from markupsafe import Markup, escape

from lapse_client.reading.instant import shown

_LONGEST: Final = 100_000
"""The most characters of a payload that a page shows."""

_MILLISECONDS: Final = re.compile(r"(?<=:[0-9]{2})\.[0-9]{3}\Z")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
"""Control characters except tab and line ends, direction marks, and characters without width."""


def instant(at_ms: int | None) -> str:
    """Format an instant, ms since the epoch, in UTC."""
    if at_ms is None or at_ms < 0:
        return "–"
    text = shown(at_ms)
    return text if "." in text or " ms" in text else f"{text}.000"


def second(at_ms: int | None) -> str:
    """Format an instant, ms since the epoch, in UTC, without its milliseconds."""
    return _MILLISECONDS.sub("", instant(at_ms))


def span(ms: int | None) -> str:
    """Format a duration in ms, in its two largest units."""
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


def brief(ms: float) -> str:
    """Format a duration in ms, in one unit."""
    return f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s"


def visible(text: str) -> str:
    """Return a text in which invisible characters, and those that reorder others, are escaped."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def coded(text: str) -> Markup:
    """Return a text as HTML, with the parts between backquotes as code."""
    parts = re.split("`([^`\n]+)`", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(one) if at % 2 else escape(one) for at, one in enumerate(parts)
    )


def payload(value: bytes | None) -> str:
    """Format a payload: JSON is indented, text stays text, other bytes become hexadecimal."""
    if not value:
        return "no payload" if value is None else "an empty payload"
    try:
        orjson.loads(value)
        text = _set_out(value.decode())
    except orjson.JSONDecodeError:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.hex(" ", -2)
    text = visible(text[: _LONGEST + 1])
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(value):,} bytes)"


def _set_out(text: str) -> str:
    """Indent JSON without parsing values, so that no number is rounded and no duplicate name is dropped."""
    parts, depth, size, before = list[str](), 0, 0, ""
    for part in _TOKEN.findall(text):
        if part in "]}":
            depth -= 1
        breaks = before not in "[{" if part in "]}" else bool(before) and before in "[{,"
        parts.append(("\n" + "  " * depth if breaks else "") + (": " if part == ":" else part))
        depth += part in "[{"
        size += len(parts[-1])
        if size > _LONGEST:
            break
        before = part
    return "".join(parts)


def of_bytes(value: bytes | str | None) -> str:
    """Format a key or similar bytes as text."""
    if value is None:
        return "none"
    return visible(value if isinstance(value, str) else value.decode("utf-8", "backslashreplace"))


def header(name: str, value: bytes | str | None) -> str:
    """Format a header's value. For an instant, add it in UTC."""
    text = of_bytes(value)
    if name.startswith("lapse-") and name.endswith("-at-ms") and text.isascii() and text.isdigit() and len(text) < 14:
        return f"{text} ({instant(int(text))})"
    return text


def is_text(value: bytes | None) -> bool:
    """Return whether a payload is text that a form can show."""
    try:
        return value is not None and "\0" not in value.decode()
    except UnicodeDecodeError:
        return False

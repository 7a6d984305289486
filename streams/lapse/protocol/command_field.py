"""Command fields: checks the value of each field of a command, and describes faults (X2, X7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Check = Callable[[Any], str | None]
"""Returns what is wrong with a value; None = nothing."""

MOST_NAME_CHARACTERS: Final = 500
"""The greatest length of names and ids, which return in headers of answers and deliveries."""

MOST_BOOKMARKS: Final = 20_000
"""The greatest number of bookmarks in a command."""

LEAST_HEARTBEAT_MS: Final = 100
"""The shortest heartbeat timeout, ms. A heartbeat is due every third of it, and comes through Kafka."""

SHOWN_CHARACTERS: Final = 60
"""How many characters of an invalid value or name are shown to the sender."""

_MOST: Final = (1 << 63) - 1

QUEUE_STATES: Final = (
    "available",
    "leased",
    "delayed",
    "transferring",
    "scheduled",
    "held",
    "unconfirmed",
    "dying",
)
"""The states of messages in a peek."""


def quote_start(value: object) -> str:
    """Return the start of an invalid value. Nested values are not written, because that takes time and stack."""
    if isinstance(value, dict | list | tuple):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(str(value)[:SHOWN_CHARACTERS])


def _text(value: Any) -> str | None:
    return None if type(value) is str else f"expected a text, not {quote_start(value)}"


def _name(value: Any) -> str | None:
    if type(value) is not str:
        return f"expected a text, not {quote_start(value)}"
    if len(value) > MOST_NAME_CHARACTERS:
        return f"expected at most {MOST_NAME_CHARACTERS} characters, not {len(value):,}"
    return None


def _truth(value: Any) -> str | None:
    return None if type(value) is bool else f"expected true or false, not {quote_start(value)}"


def _number(least: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not int:
            return f"expected a whole number, not {quote_start(value)}"
        if value < least:
            return f"expected {least} or more, not {quote_start(value)}"
        return None if value <= _MOST else f"expected {_MOST} at most, not {quote_start(value)}"

    return check


def _one_of(*values: str) -> Check:
    *most, last = map(repr, values)

    def check(value: Any) -> str | None:
        return None if value in values else f"expected {', '.join(most)} or {last}, not {quote_start(value)}"

    return check


def _array(most: int | None) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list | tuple):
            return f"expected an array, not {quote_start(value)}"
        if most is not None and len(value) > most:
            return f"has {len(value):,} items; {most:,} is the most in one command"
        return None

    return check


_count, _period = _number(0), _number(1)

CHECKS: Final[Mapping[str, Check]] = {
    "command": _name,
    "id": _name,
    "answer": _one_of("all", "errors", "none"),
    "subscription": _name,
    "client": _name,
    "bookmarks": _array(MOST_BOOKMARKS),
    "filter": _text,
    "max_backlog": _count,
    "payload": _one_of("inline", "packed", "reference"),
    "heartbeat_timeout_ms": _number(LEAST_HEARTBEAT_MS),
    "lease_ms": _period,
    "delay_ms": _count,
    "keys": _array(None),
    "data": _array(None),
    "select": _array(None),
    "order_by": _text,
    "top_n": _count,
    "skip": _count,
    "batch_size": _period,
    "leased": _truth,
    "force": _truth,
    "transfer": _name,
    "to": _name,
    "entity": _name,
    "settings": _text,
    "version": _period,
    "lifetimes": _one_of("new", "kept"),
    "handed_over": _truth,
    "dry_run": _truth,
    "fault": _name,
    "spare": _truth,
    "least_life_ms": _count,
    "state": _one_of("", *QUEUE_STATES),
}
"""By field: the check of its value."""

OPTIONAL: Final = frozenset(
    "filter max_backlog heartbeat_timeout_ms lease_ms delay_ms order_by top_n skip batch_size settings version".split()
)
"""Fields that may be null."""

_ITEMS: Final[Mapping[str, tuple[type, ...]]] = {
    "bookmarks": (str,),
    "keys": (str, bytes),
    "data": (str, bytes),
    "select": (str,),
}
"""By array field: the permitted types of its items."""

_FILLED: Final[Mapping[str, str]] = {
    "filter": "leave it out, or send TRUE for everything",
    "settings": "leave it out, or send a JSON object",
}
"""By field that is refused if it is empty, so that nobody gets everything, or defaults, by mistake: what to do."""


def faults(fields: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the fields of a command, all of which are known; empty = nothing.

    Only the first invalid item of an array is named.
    """
    found: list[str] = []
    if "command" not in fields:
        found.append("field command: required")
    for name, value in fields.items():
        if value is None and name in OPTIONAL:
            continue
        fault = CHECKS[name](value)
        if fault is not None:
            found.append(f"field {name}: {fault}")
        elif name in _ITEMS:
            found += _item_fault(name, value)
    return found + [f"field {name}: is empty; {remedy}" for name, remedy in _FILLED.items() if fields.get(name) == ""]


def _item_fault(name: str, items: list[Any]) -> list[str]:
    """Return the fault of the first item with a wrong type, if any."""
    kinds = _ITEMS[name]
    for at, item in enumerate(items):
        if not isinstance(item, kinds):
            return [f"field {name}.{at}: expected a text, not {quote_start(item)}"]
    return []

"""What each field of a command may hold, and what is said of one that holds something else (X2, X7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

Check = Callable[[Any], str | None]
"""Says what is wrong with a value; None = nothing."""

MOST_NAME_CHARACTERS: Final = 500
"""Names and ids come back in headers of answers and deliveries, so they have to be short."""

MOST_BOOKMARKS: Final = 20_000
"""What a command changes is durable as a whole, so it has a largest size."""

SHOWN_CHARACTERS: Final = 60
"""How many characters of a wrong value or name are shown to its sender."""

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
"""The states of messages, as a peek shows them."""


def shown(value: object) -> str:
    """A wrong value, as far as it helps; a nested one is not written out, which takes time and stack."""
    if isinstance(value, dict | list | tuple):
        return "an object" if isinstance(value, dict) else "an array"
    return repr(str(value)[:SHOWN_CHARACTERS])


def _text(value: Any) -> str | None:
    return None if type(value) is str else f"expected a text, not {shown(value)}"


def _name(value: Any) -> str | None:
    if type(value) is not str:
        return f"expected a text, not {shown(value)}"
    if len(value) > MOST_NAME_CHARACTERS:
        return f"expected at most {MOST_NAME_CHARACTERS} characters, not {len(value):,}"
    return None


def _truth(value: Any) -> str | None:
    return None if type(value) is bool else f"expected true or false, not {shown(value)}"


def _number(least: int) -> Check:
    def check(value: Any) -> str | None:
        if type(value) is not int:
            return f"expected a whole number, not {shown(value)}"
        if value < least:
            return f"expected {least} or more, not {shown(value)}"
        return None if value <= _MOST else f"expected {_MOST} at most, not {shown(value)}"

    return check


def _one_of(*values: str) -> Check:
    *most, last = map(repr, values)

    def check(value: Any) -> str | None:
        return None if value in values else f"expected {', '.join(most)} or {last}, not {shown(value)}"

    return check


def _array(most: int | None) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list | tuple):
            return f"expected an array, not {shown(value)}"
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
    "heartbeat_timeout_ms": _period,
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
"""The check of each field's value."""

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
"""What the arrays hold."""

_CHANGING: Final = frozenset({"sow_delete", "purge", "rewind", "acknowledge", "cancel", "expire"})
"""Commands that an empty filter must not carry out on everything."""


def faults(fields: Mapping[str, Any]) -> list[str]:
    """What is wrong with the fields of a command, which are all known; empty = nothing.

    Of an array the first wrong item is named.
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
    if fields.get("filter") == "" and _changes(fields.get("command")):
        found.append("field filter: is empty; leave it out, or send TRUE for everything")
    return found


def _changes(command: object) -> bool:
    return isinstance(command, str) and command in _CHANGING


def _item_fault(name: str, items: list[Any]) -> list[str]:
    """The first item that is none of the kinds that the array holds."""
    kinds = _ITEMS[name]
    for at, item in enumerate(items):
        if not isinstance(item, kinds):
            return [f"field {name}.{at}: expected a text, not {shown(item)}"]
    return []

"""Arguments of the client's methods: they are checked before anything is sent, waited for, or marked (X7)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from lapse.protocol.bookmark import Bookmark

T = TypeVar("T")

_LATEST_MS: Final = (1 << 63) - 1


def check_count(what: str, value: object, least: int = 1) -> None:
    """Check a number of things.

    Raises:
        ValueError: it is no whole number, or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} = {value!r}: expected a whole number, {least} or more")


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Check a value that must be one of several texts.

    Raises:
        ValueError: it is none of them.
    """
    if value not in choices:
        raise ValueError(f"{what}: {value!r}: expected {', '.join(choices[:-1])} or {choices[-1]}")


def check_handler(handler: object) -> None:
    """Check what is to be called with each delivery. Else each message would be cancelled, again and again.

    Raises:
        TypeError: it cannot be called.
    """
    if not callable(handler):
        raise TypeError(f"handler = {handler!r}: expected a function of one delivery")


def check_timeout(what: str, seconds: object) -> None:
    """Check a time limit that an object keeps, in seconds.

    Raises:
        ValueError: it is no number, negative, or too long for a lock.
    """
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= threading.TIMEOUT_MAX  # NaN is in no range
    ):
        raise ValueError(f"{what} = {seconds!r}: expected a number of seconds, from 0 on, and not infinite")


def check_wait(seconds: object) -> None:
    """Check how long one call may wait, in seconds. None and infinity = for ever; a negative number = not at all.

    Raises:
        ValueError: it is no number. A wait for NaN would never end, and never sleep.
    """
    if seconds is None or type(seconds) is int:
        return
    if not isinstance(seconds, float) or seconds != seconds:
        raise ValueError(f"timeout = {seconds!r}: expected a number of seconds, or None to wait without a limit")


def check_instant(what: str, value: object) -> None:
    """Check an instant, in ms since the epoch; None = none is given.

    Raises:
        ValueError: it is no whole number, such as one of `time.time() * 1000`, or beyond 64 bits.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LATEST_MS:
        raise ValueError(f"{what} = {value!r}: expected an instant, in whole ms since the epoch")


def several(what: str, given: Iterable[T]) -> Iterable[T]:
    """Return what was given for an argument that takes several values.

    Raises:
        TypeError: it is a single value, whose characters or parts would be taken for the values; or no collection.
    """
    one: object = given
    if not isinstance(one, Iterable):
        raise TypeError(f"{what} = {one!r}: expected several, such as a list")
    if isinstance(one, str | bytes | Bookmark):
        shown = str(one) if isinstance(one, Bookmark) else one
        raise TypeError(f"{what} takes several, such as [{shown!r}], and no single one")
    return given

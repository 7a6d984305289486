"""JSON in which numbers keep their value, whatever their number of digits.

A 64-bit float has 15 to 17 digits, and numbers in JSON may have more: amounts of money, or ids. A payload in a request
is published with the numbers that were written, so a number that a float would change is kept as its text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lapse.protocol.repeated_key import check_keys

_SURE_DIGITS: Final = 15
"""A float keeps so many digits of a decimal number."""

_LONG: Final = re.compile(rb"[:,\[\s]-?(?:[0-9](?:\.?[0-9]){15}|[0-9.]+[eE])")
"""Finds numbers that a float may change: those with 16 digits or more, or with an exponent."""

_DIGITS: Final = b"0123456789."
_FORM: Final = bytes(0x30 if byte in _DIGITS else 0x65 if byte in b"eE" else 0x78 for byte in range(256))
"""Translates a body, so that a number with an exponent has `0e`, and one with 16 digits has 16 times `0`."""

_WHOLE: Final = range(-(1 << 63), 1 << 64)
"""The whole numbers that orjson writes."""

_MOST_WHOLE: Final = 21
"""The most characters of a whole number that may be among them."""


@dataclass(frozen=True, slots=True)
class ExactNumber:
    """A number that no 64-bit integer or float has.

    Attributes:
        text: the number as it was written.
    """

    text: str


def loaded(body: bytes) -> Any:
    """Decode JSON. Numbers that no 64-bit integer or float has become `ExactNumber`.

    Raises:
        orjson.JSONDecodeError: the body is no JSON in UTF-8.
        ValueError: an object in it has a key twice.
    """
    found = orjson.loads(body)
    check_keys(body, found)
    if _may_have_long(body) and _LONG.search(body):
        try:
            return json.loads(body, parse_float=_fraction, parse_int=_whole)
        except RecursionError:  # orjson decodes deeper nesting
            return found
    return found


def dumped(value: object) -> bytes:
    """Encode JSON. An `ExactNumber` is written with all its digits."""
    return orjson.dumps(value, default=_fragment, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _may_have_long(body: bytes) -> bool:
    """Return False if `_LONG` finds nothing for sure. It takes a tenth of the time of a search without result."""
    form = body.translate(_FORM)
    return b"0" * (_SURE_DIGITS + 1) in form or b"0e" in form


def _fraction(text: str) -> float | ExactNumber:
    digits = text.lower().partition("e")[0].strip("-").replace(".", "").strip("0")
    number = float(text)
    kept = not digits or (len(digits) <= _SURE_DIGITS and 1e-300 < abs(number) < 1e300)
    return number if kept else ExactNumber(text)


def _whole(text: str) -> int | ExactNumber:
    number = int(text) if len(text) <= _MOST_WHOLE else _WHOLE.stop
    return number if number in _WHOLE else ExactNumber(text)


def _fragment(value: object) -> orjson.Fragment:
    if isinstance(value, ExactNumber):
        return orjson.Fragment(value.text)
    raise TypeError(f"{type(value).__name__} is no value of JSON")

"""Deltas: merges a delta into a stored record, and computes the delta between two records (S2, S6, C44)."""

from __future__ import annotations

from typing import Any


class DeltaError(ValueError):
    """A delta cannot be merged into the stored record."""


def merge(stored: object, delta: object) -> dict[str, Any]:
    """Return the stored object with the delta merged in. Neither argument is changed.

    Objects are merged field by field, at every depth. Any other value of the delta replaces the stored one, and an
    explicit null sets null.

    Args:
        stored: the parsed stored record.
        delta: the parsed delta.

    Raises:
        DeltaError: one of the two is not an object.
    """
    if not isinstance(stored, dict) or not isinstance(delta, dict):
        which, value = ("stored record", stored) if not isinstance(stored, dict) else ("delta", delta)
        raise DeltaError(f"a delta merges objects, and the {which} is {_kind(value)}")
    merged: dict[str, Any] = dict(stored)
    for name, value in delta.items():
        before = merged.get(name)
        if isinstance(value, dict) and isinstance(before, dict):
            merged[name] = merge(before, value)
        else:
            merged[name] = value
    return merged


def difference(before: object, after: object) -> dict[str, Any] | None:
    """Return the delta with which `merge` turns `before` into `after`; None if there is none.

    A removed field cannot be expressed, since a null would set null.
    """
    if not isinstance(before, dict) or not isinstance(after, dict) or before.keys() - after.keys():
        return None
    changed: dict[str, Any] = {}
    for name, value in after.items():
        if name not in before:
            changed[name] = value
            continue
        old = before[name]
        if isinstance(old, dict) and isinstance(value, dict):
            inner = difference(old, value)
            if inner is None:
                return None
            if inner:
                changed[name] = inner
        elif type(old) is not type(value) or old != value or (isinstance(value, list) and repr(old) != repr(value)):
            changed[name] = value  # the comparison of repr is needed because Python's [1] equals [True]
    return changed


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    names = {"NoneType": "null", "str": "a text", "bool": "a boolean", "int": "a number", "float": "a number"}
    return names.get(type(value).__name__, f"of type {type(value).__name__}")

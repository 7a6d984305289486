"""Avro fit: checks whether a value can be written with a schema, and finds the fault if not (S2, X7).

fastavro finds most faults, but describes them in terms of Python. It also writes an integer beyond 32 bits as an `int`,
which other readers truncate.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lapse.protocol.avro_schema import AvroSchema, describe_type, kind_of

_INTEGERS: Final = {"int": 1 << 31, "long": 1 << 63}
_TYPES: Final = {"string": str, "bytes": bytes, "boolean": bool, "array": list, "map": dict, "record": dict}
_SHOWN: Final = 40


def find_misfit(value: object, schema: AvroSchema) -> str:
    """Return why a value is not a record of a schema, with the field and the expected type; empty if it is one."""
    return _misfit(value, schema.tree, _Known(schema, {}), "")


class _Known(NamedTuple):
    """The schema, and the faults found for parts of it.

    Two branches of a union may both fit a value down to its last level. Without this cache a value of 30 levels would
    be checked a billion times.
    """

    schema: AvroSchema
    found: dict[tuple[int, int], str]


def _misfit(value: Any, part: Any, known: _Known, where: str) -> str:
    part = known.schema.named(part)
    if not isinstance(value, dict | list):
        return _find_new_misfit(value, part, known, where)
    name = id(value), id(part)  # ids are unique here, since both objects live as long as the check
    if name not in known.found:
        known.found[name] = _find_new_misfit(value, part, known, where)
    return known.found[name]


def _find_new_misfit(value: Any, part: Any, known: _Known, where: str) -> str:
    kind, schema = kind_of(part), known.schema
    if kind == "union":
        faults = [_misfit(value, branch, known, where) for branch in part]
        if "" in faults:
            return ""
        several = [fault for fault, branch in zip(faults, part, strict=True) if kind_of(schema.named(branch)) != "null"]
        return several[0] if len(several) == 1 and isinstance(value, dict) else _expected(value, part, where)
    if not _is_of(value, kind, part):
        return _expected(value, part, where)
    if kind == "array":
        return next(filter(None, (_misfit(one, part["items"], known, f"{where}/[]") for one in value)), "")
    if kind == "map":
        found = (_misfit(one, part["values"], known, f"{where}/{name}") for name, one in value.items())
        return next(filter(None, found), "")
    return _fields(value, part, known, where) if kind == "record" else ""


def _fields(value: dict[str, Any], part: Any, known: _Known, where: str) -> str:
    fields = {field["name"]: field for field in part["fields"]}
    for name in value:
        if name not in fields:
            return f"{where}/{name} is no field of {known.schema.label}"
    for name, field in fields.items():
        if name not in value:
            if "default" not in field:
                return f"{where}/{name} is missing, and has no default"
        elif fault := _misfit(value[name], field["type"], known, f"{where}/{name}"):
            return fault
    return ""


def _is_of(value: Any, kind: str, part: Any) -> bool:
    if kind in _INTEGERS:
        return type(value) is int and -_INTEGERS[kind] <= value < _INTEGERS[kind]
    if kind in ("float", "double"):
        return type(value) in (int, float)
    if kind == "null":
        return value is None
    if kind == "enum":
        return isinstance(value, str) and value in part["symbols"]
    if kind == "fixed":
        return isinstance(value, bytes) and len(value) == part["size"]
    return isinstance(value, _TYPES[kind])


def _expected(value: Any, part: Any, where: str) -> str:
    shown = "null" if value is None else repr(value)
    return f"{where or 'the record'} is {shown[:_SHOWN]}{'…' * (len(shown) > _SHOWN)}, expected {describe_type(part)}"

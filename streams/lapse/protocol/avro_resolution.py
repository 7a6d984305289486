"""Avro resolution: checks whether payloads of one schema can be read with another, and finds the fault if not.

The rules are those of "Schema Resolution" in the Avro specification: fields by name or by an alias of the reader's,
added fields by their defaults, numbers to wider ones, text to bytes and back, branches of unions one by one, and
unknown symbols of enums by the reader's default. fastavro applies the rules. This module describes what cannot be
resolved.
"""

from __future__ import annotations

from typing import Any, Final

from fastavro.validation import validate

from lapse.protocol.avro_schema import NAMED, AvroSchema, describe_type, kind_of, simple_name

_WIDER: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_ANY: Final = object()


def fault_between(writer: AvroSchema, reader: AvroSchema, value: object = _ANY) -> str:
    """Return why a value cannot be read with another schema than its writer's; empty if it can.

    Args:
        writer: the schema that it was written with.
        reader: the schema to read it with.
        value: the value, read with the writer's schema; left out = any value. Whether a branch of a union or a symbol
            of an enum is a fault depends on the value, so neither is one without a value.
    """
    return _Comparison(writer, reader).fault(writer.tree, reader.tree, value, "")


def written_part(value: object, written: object, reader: AvroSchema) -> object:
    """Return a value without the fields that its writer did not write, because a delta must not set their defaults.

    Args:
        value: the value, read with the reader's schema.
        written: the same value, read with the writer's schema alone.
        reader: the reader's schema.
    """
    return _written_part(value, written, reader.tree, reader)


def _written_part(value: Any, written: Any, part: Any, reader: AvroSchema) -> Any:
    if not isinstance(value, dict) or not isinstance(written, dict):
        return value
    part = reader.named(part)
    if isinstance(part, list):
        objects = [branch for branch in map(reader.named, part) if kind_of(branch) in ("record", "map")]
        if len(objects) != 1:
            return value
        part = objects[0]
    if kind_of(part) == "map":
        return {name: _written_part(one, written.get(name), part["values"], reader) for name, one in value.items()}
    kept = {}
    for field in part["fields"]:
        for source in (field["name"], *field.get("aliases", ())):
            if source in written:
                kept[field["name"]] = _written_part(value[field["name"]], written[source], field["type"], reader)
                break
    return kept


class _Comparison:
    """A comparison of two schemas. It notes the records compared already, since a schema may contain itself."""

    def __init__(self, writer: AvroSchema, reader: AvroSchema) -> None:
        self._writer = writer
        self._reader = reader
        self._compared: set[tuple[str, str]] = set()

    def fault(self, written: Any, wanted: Any, value: object, where: str) -> str:
        written, wanted = self._writer.named(written), self._reader.named(wanted)
        if isinstance(written, list):
            return self._branches(written, wanted, value, where)
        if isinstance(wanted, list):
            if any(not self.fault(written, branch, value, where) for branch in wanted):
                return ""
            if len(several := [branch for branch in wanted if branch != "null"]) == 1:
                return self.fault(written, several[0], value, where)
            return self._differs(written, wanted, where)
        kind, other = kind_of(written), kind_of(wanted)
        if kind != other:
            return "" if other in _WIDER.get(kind, ()) else self._differs(written, wanted, where)
        if kind in NAMED and not _same_name(written, wanted):
            return (
                f"{_shown(where)} is {describe_type(written)} in {self._writer.label} and {describe_type(wanted)} in "
                f"{self._reader.label}; give the latter the alias {simple_name(written)}"
            )
        match kind:
            case "record":
                return self._fields(written, wanted, value, where)
            case "enum" if value is not _ANY and value not in wanted["symbols"] and not wanted.get("default"):
                return f"{_shown(where)} has the symbol {value}, which {self._reader.label} does not have"
            case "fixed" if written["size"] != wanted["size"]:
                return self._differs(written, wanted, where)
            case "array":
                items = [_ANY] if value is _ANY else value
                assert isinstance(items, list)
                faults = (self.fault(written["items"], wanted["items"], one, f"{where}/[]") for one in items)
                return next(filter(None, faults), "")
            case "map":
                items = {"*": _ANY} if value is _ANY else value
                assert isinstance(items, dict)
                faults = (
                    self.fault(written["values"], wanted["values"], one, f"{where}/{name}")
                    for name, one in items.items()
                )
                return next(filter(None, faults), "")
        return ""

    def _branches(self, written: list[Any], wanted: Any, value: object, where: str) -> str:
        """Return the fault of a writer's union: of the value's branch, or of any branch without a value."""
        if value is _ANY:
            faults = [self.fault(branch, wanted, value, where) for branch in written]
            return "" if "" in faults else faults[-1]
        of_value = (one for one in map(self._writer.named, written) if validate(value, one, raise_errors=False))
        branch = next(of_value, None)
        return "" if branch is None else self.fault(branch, wanted, value, where)

    def _fields(self, written: Any, wanted: Any, value: object, where: str) -> str:
        if value is _ANY:
            pair = written["name"], wanted["name"]
            if pair in self._compared:
                return ""
            self._compared.add(pair)
        there = {field["name"]: field for field in written["fields"]}
        for field in wanted["fields"]:
            name = field["name"]
            inner = f"{where}/{name}"
            sources = [other for other in (name, *field.get("aliases", ())) if other in there]
            if len(sources) > 1:
                return f"{inner} is both {' and '.join(sources)} in {self._writer.label}; drop the alias"
            if not sources:
                if "default" not in field:
                    return (
                        f"{inner} is not in {self._writer.label}, and {self._reader.label} has neither a default for "
                        "it nor an alias under which it is there"
                    )
                continue
            content = _ANY if value is _ANY else value.get(sources[0])  # type: ignore[attr-defined]  # of a record
            if fault := self.fault(there[sources[0]]["type"], field["type"], content, inner):
                return fault
        return ""

    def _differs(self, written: Any, wanted: Any, where: str) -> str:
        here, there = (
            f"{describe_type(written)} in {self._writer.label}",
            f"{describe_type(wanted)} in {self._reader.label}",
        )
        return f"{_shown(where)} is {here} and {there}"


def _same_name(written: Any, wanted: Any) -> bool:
    aliases = wanted.get("aliases", ())
    return simple_name(written) == simple_name(wanted) or written["name"] in aliases or simple_name(written) in aliases


def _shown(where: str) -> str:
    return where or "the record"

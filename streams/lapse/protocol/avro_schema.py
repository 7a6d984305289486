"""Avro schemas of payloads, read from `.avsc` files without their logical types.

A value of a logical type is read in its stored form (a timestamp is a number), so that expressions can compare it and
nothing is rounded when it is written again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form

from lapse.protocol.codec import MARKER
from lapse.protocol.repeated_key import check_keys

_NO_SCHEMA: Final = (
    SchemaParseException, UnknownType, ValueError, KeyError, AttributeError, TypeError, RecursionError,
)  # fmt: skip

NAMED: Final = frozenset({"record", "enum", "fixed"})
"""The kinds of types with names."""


class AvroSchema:
    """The schema of a payload.

    Args:
        tree: the parsed content of the `.avsc` file.
        label: its name in messages.

    Attributes:
        label: its name in messages.
        tree: the schema as fastavro parses it, with full names.
        names: the named types by full name.
        mark: the first bytes of a payload in single-object encoding.

    Raises:
        ValueError: the tree is not a schema of a record.
    """

    __slots__ = ("label", "mark", "names", "tree")

    def __init__(self, tree: object, label: str = "the schema") -> None:
        self.label = label
        self.names: dict[str, Any] = {}
        try:
            self.tree: Any = fastavro.parse_schema(_without_logical_types(tree), named_schemas=self.names)
            self.mark = MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(self.tree), "CRC-64-AVRO"))
        except _NO_SCHEMA as error:
            raise ValueError(f"no Avro schema: {str(error) or type(error).__name__}") from error
        if not isinstance(self.tree, dict) or self.tree.get("type") != "record":
            raise ValueError("the schema of a payload has to be a record")
        for named in self.names.values():
            for field in named.get("fields", ()):
                if "default" in field:
                    field["default"] = self._default(field["type"], field["default"])

    @classmethod
    def of_file(cls, path: Path) -> AvroSchema:
        """Read an `.avsc` file.

        Raises:
            ValueError: the file cannot be read, or is not a schema of a record.
        """
        try:
            text = path.read_text("utf-8")
            tree = json.loads(text)
            check_keys(text.encode(), tree)
            return cls(tree, path.name)
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def fingerprint(self) -> str:
        """The CRC-64-AVRO of its canonical form, in hexadecimal, in the byte order of a payload."""
        return self.mark[len(MARKER) :].hex()

    def named(self, part: Any) -> Any:
        """Return a part of the schema, with the name of a type replaced by the type."""
        return self.names.get(part, part) if isinstance(part, str) else part

    def _default(self, part: Any, value: Any) -> Any:
        """Return a default as a value. JSON has no bytes, and may omit the defaults of inner records."""
        if isinstance(part, list):
            return self._default(part[0], value)
        part = self.named(part)
        kind = kind_of(part)
        if kind in ("bytes", "fixed") and isinstance(value, str):
            return value.encode("latin-1")
        if kind == "array" and isinstance(value, list):
            return [self._default(part["items"], item) for item in value]
        if kind == "map" and isinstance(value, dict):
            return {name: self._default(part["values"], item) for name, item in value.items()}
        if kind == "record" and isinstance(value, dict):
            given = {field["name"]: field["default"] for field in part["fields"] if "default" in field} | value
            types = {field["name"]: field["type"] for field in part["fields"]}
            return {name: self._default(types[name], item) if name in types else item for name, item in given.items()}
        return value


def kind_of(part: Any) -> str:
    """Return the kind of a part of a schema: `union`, its type, or the name of a type defined elsewhere."""
    if isinstance(part, list):
        return "union"
    return kind_of(part["type"]) if isinstance(part, dict) else str(part)


def simple_name(named: Any) -> str:
    """Return the name of a named type, without its namespace."""
    return str(named["name"]).rsplit(".", 1)[-1]


def describe_type(part: Any) -> str:
    """Return a description of a part of a schema."""
    kind = kind_of(part)
    if kind == "union":
        return " or ".join(describe_type(branch) for branch in part)
    if kind in NAMED and isinstance(part, dict):
        size = f" of {part['size']} bytes" if kind == "fixed" else ""
        return f"{kind} {simple_name(part)}{size}"
    return kind


def _without_logical_types(tree: Any) -> Any:
    """Return the schema without its logical types."""
    if isinstance(tree, dict):
        return {
            name: part if name == "default" else _without_logical_types(part)
            for name, part in tree.items()
            if name != "logicalType"
        }
    return [_without_logical_types(part) for part in tree] if isinstance(tree, list) else tree

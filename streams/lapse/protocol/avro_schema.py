"""Schemas of payloads: read from `.avsc` files, without their logical types.

A logical type is read as what it is stored as (a timestamp is a number), so that expressions can compare it and nothing
is rounded on the way back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form

from lapse.protocol.codec import MARKER

_NO_SCHEMA: Final = (
    SchemaParseException, UnknownType, ValueError, KeyError, AttributeError, TypeError, RecursionError,
)  # fmt: skip

NAMED: Final = frozenset({"record", "enum", "fixed"})
"""Kinds of types that have a name."""


class AvroSchema:
    """The schema of a payload.

    Args:
        tree: what the `.avsc` file says, parsed.
        label: what to call it in messages.

    Attributes:
        label: the same.
        tree: as fastavro has it; names are full names.
        names: the named types by their full names.
        mark: what a payload in single-object encoding begins with.

    Raises:
        ValueError: it is no schema of a record.
    """

    __slots__ = ("label", "mark", "names", "tree")

    def __init__(self, tree: object, label: str = "the schema") -> None:
        self.label = label
        self.names: dict[str, Any] = {}
        try:
            self.tree: Any = fastavro.parse_schema(_plain(tree), named_schemas=self.names)
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
            ValueError: it cannot be read, or is no schema of a record.
        """
        try:
            return cls(json.loads(path.read_text("utf-8")), path.name)
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def fingerprint(self) -> str:
        """The CRC-64-AVRO of its canonical form, as it stands in a payload, in hexadecimal."""
        return self.mark[len(MARKER) :].hex()

    def named(self, part: Any) -> Any:
        """A part of the schema; where that is the name of a type, the type."""
        return self.names.get(part, part) if isinstance(part, str) else part

    def _default(self, part: Any, value: Any) -> Any:
        """A default as a value: JSON has no bytes, and need not repeat the defaults of inner records."""
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
    """What a part of a schema is: `union`, or its type; of what is named elsewhere the name."""
    if isinstance(part, list):
        return "union"
    return kind_of(part["type"]) if isinstance(part, dict) else str(part)


def simple_name(named: Any) -> str:
    """The name of a named type, without its namespace."""
    return str(named["name"]).rsplit(".", 1)[-1]


def words_of(part: Any) -> str:
    """A part of a schema, in words."""
    kind = kind_of(part)
    if kind == "union":
        return " or ".join(words_of(branch) for branch in part)
    if kind in NAMED and isinstance(part, dict):
        size = f" of {part['size']} bytes" if kind == "fixed" else ""
        return f"{kind} {simple_name(part)}{size}"
    return kind


def _plain(tree: Any) -> Any:
    """The schema without its logical types."""
    if isinstance(tree, dict):
        return {
            name: part if name == "default" else _plain(part) for name, part in tree.items() if name != "logicalType"
        }
    return [_plain(part) for part in tree] if isinstance(tree, list) else tree

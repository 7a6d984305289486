"""Avro bounds: limits the nesting and the empty items of Avro payloads before they are decoded (X7).

fastavro's decoder is recursive, on the stack of the process. 10 KB of a recursive schema overflow the stack and crash
the process. An array whose items take no bytes can expand eight bytes to a billion values. So payloads of such schemas
are checked before they are decoded. Other payloads are bounded by their schema, and need no check.
"""

from __future__ import annotations

from typing import Any, Final

from lapse.protocol.avro_schema import AvroSchema, kind_of

MOST_LEVELS: Final = 256
"""The greatest nesting of records, arrays and maps, in a schema and in a payload."""

MOST_EMPTY_ITEMS: Final = 1 << 16
"""The greatest number of items of no bytes in the arrays of a payload."""

_LONG_BYTES: Final = 10
_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}
_RECORDS: Final = frozenset({"record", "error"})
_CONTAINERS: Final = _RECORDS | {"array", "map"}
_ONE_NUMBER: Final = frozenset({"int", "long", "enum"})


class AvroBounds:
    """Checks payloads of one schema before they are decoded.

    Args:
        schema: the schema that they are written with.

    Raises:
        ValueError: the schema is nested too deeply, or one of its records contains itself without end.
    """

    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema
        self._records = sum(kind_of(one) in _RECORDS for one in schema.names.values())
        self._refuse_endless()
        self._has_empty_items = self._look_for_empty_items()
        self._walked = self._is_recursive() or self._has_empty_items

    def check(self, data: bytes, at: int) -> None:
        """Check a payload.

        Args:
            data: the payload.
            at: index of its body's first byte.

        Raises:
            ValueError: it is nested too deeply, has too many items of no bytes, or is damaged in a way that decoders
                interpret differently.
        """
        if not self._walked:
            return
        # Each level that is not of another record takes at least a byte, so a short payload cannot be deep.
        if not self._has_empty_items and (len(data) - at + 1) * (self._records + 1) <= MOST_LEVELS:
            return
        try:
            self._walk(data, at)
        except IndexError:
            return  # it ends too early, which the decoder reports, and is not too deep up to there

    def _walk(self, data: bytes, at: int) -> int:
        """Check a payload from an index on. Return the index of its end.

        Raises:
            IndexError: it ends too early.
            ValueError: it exceeds the bounds, or is damaged.
        """
        empty_items = 0
        # Parts still to read: a part of the schema, its level, and the number of items left in its block.
        ahead: list[tuple[Any, int, int]] = [(self._schema.tree, 1, 0)]
        while ahead:
            part, level, left = ahead.pop()
            part = self._type(part)
            kind = kind_of(part)
            if level > MOST_LEVELS and kind in _CONTAINERS:
                raise ValueError(f"nested more than {MOST_LEVELS} deep")
            if kind in _RECORDS:
                ahead.extend((field["type"], level + 1, 0) for field in reversed(part["fields"]))
            elif kind == "union":
                branch, at = _number(data, at)
                if not 0 <= branch < len(part):
                    raise ValueError(f"the union at byte {at} has no branch {branch}")
                ahead.append((part[branch], level, 0))
            elif kind in ("array", "map"):
                if not left:
                    left, at = _number(data, at)
                    if left < 0:
                        left = -left
                        _, at = _number(data, at)
                    if not left:
                        continue
                if kind == "map":
                    at = _end_of_text(data, at)
                elif self._has_empty_items and self._is_empty_item(part["items"]):
                    empty_items += left
                    if empty_items > MOST_EMPTY_ITEMS:
                        raise ValueError(f"more than {MOST_EMPTY_ITEMS:,} items that take no bytes")
                    left = 1
                ahead.append((part, level, left - 1))
                ahead.append((part["items" if kind == "array" else "values"], level + 1, 0))
            else:
                at = _end_of_leaf(data, at, kind, part)
        return at

    def _type(self, part: Any) -> Any:
        """Return a part of the schema with names and nested types resolved."""
        while True:
            if isinstance(part, dict) and (not isinstance(part["type"], str) or part["type"] in self._schema.names):
                part = part["type"]
            elif isinstance(part, str) and part in self._schema.names:
                part = self._schema.names[part]
            else:
                return part

    def _refuse_endless(self) -> None:
        """Check that every record can end.

        Raises:
            ValueError: a record contains itself, and no union, array or map can end the recursion.
        """
        inner: dict[str, set[str]] = {}
        for name, one in self._schema.names.items():
            types = (self._type(field["type"]) for field in one.get("fields", ()))
            inner[name] = {part["name"] for part in types if kind_of(part) in _RECORDS}
        ending: set[str] = set()
        while more := {name for name, parts in inner.items() if name not in ending and parts <= ending}:
            ending |= more
        if endless := sorted(inner.keys() - ending):
            raise ValueError(f"{self._schema.label}: record {endless[0]} contains itself without end")

    def _is_recursive(self) -> bool:
        """Return whether a record may contain itself.

        Raises:
            ValueError: the schema is nested too deeply.
        """
        recursive = False
        done: dict[str, int] = {}
        entered: set[str] = set()

        def levels(part: Any) -> int:
            nonlocal recursive
            part = self._type(part)
            kind = kind_of(part)
            if kind == "union":
                return max(map(levels, part), default=0)
            if kind in ("array", "map"):
                return 1 + levels(part["items" if kind == "array" else "values"])
            if kind not in _RECORDS:
                return 0
            name = part["name"]
            if name in entered:
                recursive = recursive or name not in done
                return done.get(name, 0)
            entered.add(name)
            done[name] = 1 + max((levels(field["type"]) for field in part["fields"]), default=0)
            return done[name]

        try:
            deepest = levels(self._schema.tree)
        except RecursionError:
            deepest = MOST_LEVELS + 1
        if deepest > MOST_LEVELS:
            raise ValueError(f"{self._schema.label} is nested more than {MOST_LEVELS} deep")
        return recursive

    def _look_for_empty_items(self) -> bool:
        """Return whether the schema has an array of items of no bytes."""
        ahead, seen = [self._schema.tree], set()
        while ahead:
            part = self._type(ahead.pop())
            kind = kind_of(part)
            if kind == "union":
                ahead += part
            elif kind in _RECORDS and part["name"] not in seen:
                seen.add(part["name"])
                ahead += [field["type"] for field in part["fields"]]
            elif kind == "map":
                ahead.append(part["values"])
            elif kind == "array":
                if self._is_empty_item(part["items"]):
                    return True
                ahead.append(part["items"])
        return False

    def _is_empty_item(self, part: Any) -> bool:
        part = self._type(part)
        kind = kind_of(part)
        if kind in _RECORDS:
            return all(self._is_empty_item(field["type"]) for field in part["fields"])
        return kind == "null" or (kind == "fixed" and not part["size"])


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the index of its end.

    Raises:
        IndexError: the data ends too early.
        ValueError: the number has more than 64 bits.
    """
    found = shift = 0
    for _ in range(_LONG_BYTES):
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            if found >> 64:
                break
            return (found >> 1) ^ -(found & 1), at
        shift += 7
    raise ValueError(f"the number before byte {at} has more than 64 bits")


def _end_of_leaf(data: bytes, at: int, kind: str, part: Any) -> int:
    """Return the index of the end of a value that contains no others."""
    if kind in _ONE_NUMBER:
        return _number(data, at)[1]
    if kind in ("string", "bytes"):
        return _end_of_text(data, at)
    return at + (part["size"] if kind == "fixed" else _SIZES.get(kind, 0))


def _end_of_text(data: bytes, at: int) -> int:
    """Return the index of the end of a text or bytes, which begin with their length.

    Raises:
        IndexError: the data ends within the length.
        ValueError: the length is negative.
    """
    size, at = _number(data, at)
    if size < 0:
        raise ValueError(f"the text at byte {at} has a negative length")
    return at + size

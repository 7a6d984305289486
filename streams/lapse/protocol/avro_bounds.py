"""Avro bounds: limits the nesting, the records and the empty items of Avro payloads before they are decoded (X7).

fastavro's decoder is recursive, on the stack of the process. 10 KB of a recursive schema overflow the stack and crash
the process. An array whose items take no bytes can expand eight bytes to a billion values. So payloads of such schemas
are checked before they are decoded, and large ones with records in arrays. Other payloads are bounded by their schema.
"""

from __future__ import annotations

from typing import Any, Final

from lapse.protocol.avro_schema import AvroSchema, kind_of

MOST_LEVELS: Final = 256
"""The greatest nesting of records, arrays and maps, in a schema and in a payload."""

MOST_EMPTY_ITEMS: Final = 1 << 16
"""The greatest number of items of no bytes in the arrays of a payload."""

MOST_CONTAINERS: Final = 1 << 16
"""The greatest number of records, arrays and maps in a payload. The decoder takes a microsecond for each (C60).

An array or map in several blocks counts once for each. Writers seldom make a second one.
"""

_LARGE_BYTES: Final = 1 << 18
"""Larger payloads are walked if they may hold many records, even if their schema bounds the depth."""

_LONG_BYTES: Final = 10
_SIZES: Final = {"boolean": 1, "float": 4, "double": 8}
_RECORDS: Final = frozenset({"record", "error"})
_BLOCKS: Final = frozenset({"array", "map"})
_CONTAINERS: Final = _BLOCKS | {"record"}
_KINDS: Final = {
    **dict.fromkeys(_RECORDS, "record"),
    **dict.fromkeys(("int", "long", "enum"), "number"),
    **dict.fromkeys(("string", "bytes"), "text"),
    **dict.fromkeys(("null", "boolean", "float", "double", "fixed"), "sized"),
}
_LEAVES: Final = frozenset({"number", "text", "sized"})
_FURTHER: Final = -1
"""Stands for the number of items left in a block, of which another one may follow."""


class _Part:
    """A part of a schema, as payloads are walked by it.

    Attributes:
        kind: `record`, `union`, `array`, `map`, `number`, `text` or `sized`.
        inner: the fields of a record, last first; the branches of a union; the items of an array; the values of a map.
        size_bytes: the size of a value, if it is `sized`.
        is_empty: whether its values take no bytes.
    """

    __slots__ = ("inner", "is_empty", "kind", "size_bytes")

    def __init__(self) -> None:
        self.kind = ""
        self.inner: list[_Part] = []
        self.size_bytes = 0
        self.is_empty = False


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
        recursive = self._is_recursive()
        parts = self._parts()
        _note_empty(parts)
        self._root = parts[0]
        self._has_empty_items = any(part.kind == "array" and part.inner[0].is_empty for part in parts)
        self._walked = recursive or self._has_empty_items
        self._may_have_many = any(part.kind in _BLOCKS and _may_have_others(part.inner[0]) for part in parts)

    def check(self, data: bytes, at: int) -> None:
        """Check a payload.

        Args:
            data: the payload.
            at: index of its body's first byte.

        Raises:
            ValueError: it is nested too deeply, has too many records or items of no bytes, or is damaged in a way that
                decoders interpret differently.
        """
        if not self._walked and not (self._may_have_many and len(data) - at > _LARGE_BYTES):
            return
        # Each level that is not of another record takes at least a byte, so a short payload cannot be deep.
        if self._walked and not self._has_empty_items and (len(data) - at + 1) * (self._records + 1) <= MOST_LEVELS:
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
        empty_items = containers = 0
        # Parts still to read: a part of the schema, its level, and the number of items left in its block.
        ahead: list[tuple[_Part, int, int]] = [(self._root, 1, 0)]
        while ahead:
            part, level, left = ahead.pop()
            kind = part.kind
            if kind in _CONTAINERS:
                containers += not left
                _refuse_beyond(level, containers)
            if kind == "record":
                ahead += [(field, level + 1, 0) for field in part.inner]
            elif kind == "union":
                branch, at = _number(data, at)
                if not 0 <= branch < len(part.inner):
                    raise ValueError(f"the union at byte {at} has no branch {branch}")
                ahead.append((part.inner[branch], level, 0))
            elif kind in _BLOCKS:
                inner = part.inner[0]
                if left <= 0:
                    before, (left, at) = left, _begin_block(data, at)
                    containers += before == _FURTHER and left > 0
                    if not left:
                        continue
                    if kind == "array" and inner.is_empty:
                        empty_items += left
                        if empty_items > MOST_EMPTY_ITEMS:
                            raise ValueError(f"more than {MOST_EMPTY_ITEMS:,} items that take no bytes")
                        left = 1
                    elif left > len(data) - at:
                        raise ValueError("it ends too early")  # otherwise endlessly many items would be walked
                left, at = _pass_plain(data, at, left, part)
                if not left:
                    ahead.append((part, level, _FURTHER))
                    continue
                if kind == "map":
                    at = _end_of_text(data, at)
                ahead += [(part, level, left - 1 or _FURTHER), (inner, level + 1, 0)]
            else:
                at = _end_of_leaf(data, at, part)
        return at

    def _parts(self) -> list[_Part]:
        """Return the parts of the schema in the form in which payloads are walked, the whole schema first."""
        root = _Part()
        parts, known, ahead = [root], dict[str, _Part](), [(root, self._schema.tree)]
        while ahead:
            part, tree = ahead.pop()
            tree = self._type(tree)
            kind = kind_of(tree)
            inner: list[Any] = []
            if kind in _RECORDS:
                inner = [field["type"] for field in reversed(tree["fields"])]
            elif kind == "union":
                inner = tree
            elif kind in _BLOCKS:
                inner = [tree["items" if kind == "array" else "values"]]
            part.kind = _KINDS.get(kind, kind)
            part.size_bytes = tree["size"] if kind == "fixed" else _SIZES.get(kind, 0)
            for one in inner:
                tree = self._type(one)
                name = tree["name"] if kind_of(tree) in _RECORDS else ""
                if name not in known:
                    ahead.append((new := _Part(), tree))
                    parts.append(new)
                    if name:
                        known[name] = new
                part.inner.append(known[name] if name else new)
        return parts

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


def _may_have_others(part: _Part) -> bool:
    """Return whether a value is a record, array or map, or may be one."""
    return part.kind in _CONTAINERS or any(branch.kind in _CONTAINERS for branch in part.inner)


def _note_empty(parts: list[_Part]) -> None:
    """Note which parts take no bytes: nulls, fixed ones of no size, and records of nothing else."""
    changed = True
    while changed:
        changed = False
        for part in parts:
            empty = part.kind == "sized" and not part.size_bytes
            if not part.is_empty and (empty or (part.kind == "record" and all(one.is_empty for one in part.inner))):
                part.is_empty = changed = True


def _refuse_beyond(level: int, containers: int) -> None:
    """Check how deep a record, array or map is, and how many there are up to it.

    Raises:
        ValueError: it exceeds a bound.
    """
    if level > MOST_LEVELS:
        raise ValueError(f"nested more than {MOST_LEVELS} deep")
    if containers > MOST_CONTAINERS:
        raise ValueError(f"more than {MOST_CONTAINERS:,} records, arrays and maps")


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


def _begin_block(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items the next block of an array or map has, and the index of the first one.

    Raises:
        IndexError: the data ends too early.
        ValueError: a number has more than 64 bits.
    """
    count, at = _number(data, at)
    if count < 0:  # then the size of the block follows
        return -count, _number(data, at)[1]
    return count, at


def _end_of_leaf(data: bytes, at: int, part: _Part) -> int:
    """Return the index of the end of a value that contains no others."""
    if part.kind == "sized":
        return at + part.size_bytes
    first = data[at]
    if part.kind == "number":
        return _number(data, at)[1] if first & 0x80 else at + 1
    return _end_of_text(data, at) if first & 0x81 else at + 1 + (first >> 1)


def _end_of_leaves(data: bytes, at: int, count: int, part: _Part, *, keyed: bool) -> int:
    """Return the index of the end of a block of values that contain no others, with or without keys.

    Most lengths and many numbers are single bytes, which are read here.
    """
    kind, size_bytes = part.kind, part.size_bytes
    if not keyed and kind == "sized":
        return at + count * size_bytes
    for _ in range(count):
        if keyed:
            first = data[at]
            at = _end_of_text(data, at) if first & 0x81 else at + 1 + (first >> 1)
        if kind == "sized":
            at += size_bytes
        else:
            first = data[at]
            if kind == "number":
                at = _number(data, at)[1] if first & 0x80 else at + 1
            else:
                at = _end_of_text(data, at) if first & 0x81 else at + 1 + (first >> 1)
    return at


def _pass_plain(data: bytes, at: int, left: int, part: _Part) -> tuple[int, int]:
    """Pass items of a block that contain no others. An item of a union that may contain some ends that.

    Otherwise a megabyte of nulls in the place of records would take longer to walk than to decode.

    Returns:
        How many items are left, and the index of the next one, with its key if it has one.
    """
    inner, keyed = part.inner[0], part.kind == "map"
    if inner.kind in _LEAVES:
        return 0, _end_of_leaves(data, at, left, inner, keyed=keyed)
    if inner.kind != "union":
        return left, at
    branches = inner.inner
    count = len(branches)
    for passed in range(left):
        begin = at
        if keyed:
            first = data[at]
            at = _end_of_text(data, at) if first & 0x81 else at + 1 + (first >> 1)
        first = data[at]
        number, at = _number(data, at) if first & 0x81 else (first >> 1, at + 1)
        if not 0 <= number < count or branches[number].kind not in _LEAVES:
            return left - passed, begin
        at = _end_of_leaf(data, at, branches[number])
    return 0, at


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

"""Hash indexes on payload fields, for equality filters (S11)."""

from __future__ import annotations

from collections.abc import Sequence

from lapse.core.portions import Portions, clear_in_portions
from lapse.core.sow.keys import field_path


class HashIndex:
    """Finds the records with a value in a field. There is one index for each configured path.

    Only strings, numbers and booleans are indexed, since equality with other values is never true. Equal numbers and
    booleans share an entry, as they share a hash, so the filter must still be evaluated.

    Args:
        paths: the paths of the fields, such as `/order/symbol`.
    """

    __slots__ = ("_indexes", "_paths", "_values")

    def __init__(self, paths: Sequence[str]) -> None:
        steps = {field_path.format_path(one): one for one in map(field_path.parse, paths)}
        self._indexes: dict[str, dict[object, set[bytes]]] = {path: {} for path in steps}
        self._paths = tuple(steps.values())
        self._values: dict[bytes, tuple[object, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def put(self, journal_key: bytes, payload: object) -> None:
        """Add a record that is not indexed yet."""
        values = tuple(_value(payload, steps) for steps in self._paths)
        self._values[journal_key] = values
        for index, value in zip(self._indexes.values(), values, strict=True):
            if value is not None:
                index.setdefault(value, set()).add(journal_key)

    def discard(self, journal_key: bytes) -> None:
        """Remove a record, if it is indexed."""
        values = self._values.pop(journal_key, None)
        if values is None:
            return
        for index, value in zip(self._indexes.values(), values, strict=True):
            if value is not None:
                journal_keys = index[value]
                journal_keys.discard(journal_key)
                if not journal_keys:
                    del index[value]

    def release_memory(self) -> Portions[None]:
        """Free the memory of the indexes, in portions."""
        yield from clear_in_portions(self._values, *self._indexes.values())

    def find(self, equalities: Sequence[tuple[str, object]]) -> set[bytes] | None:
        """Return the smallest set that holds every record with these field values; None if no index applies."""
        none: set[bytes] = set()
        best: set[bytes] | None = None
        for path, value in equalities:
            index = self._indexes.get(path)
            if index is not None and isinstance(value, (str, int, float)):
                found = index.get(value, none)
                if best is None or len(found) < len(best):
                    best = found
        return best


def _value(payload: object, steps: field_path.Steps) -> object:
    value = field_path.value_at(payload, steps)
    return value if isinstance(value, (str, int, float)) else None

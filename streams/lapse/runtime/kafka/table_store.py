"""The store of a Faust table that restores itself, as far as Faust sees it.

Only a shard knows which records of its partition have expired: reading through Faust (`table[key]`) asks it (L10).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from faust.stores.base import Store
from faust.types import TP, EventT

from lapse.runtime.kafka.lean_service import LeanService


class TableReader(Protocol):
    """The shards behind a table, as its readers see them."""

    def look_up(self, key: bytes) -> bytes | None:
        """Return the current value of a table key; None if there is none, or it has expired."""

    def look_through(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all current keys and values of this worker's shards."""


class TableStore(LeanService, Store[Any, Any]):
    """A store that leaves Faust's recovery and backups nothing to do, and whose mapping is for readers only."""

    @property
    @abstractmethod
    def reader(self) -> TableReader:
        """The shards behind the table, which know its current contents."""

    # What Faust calls in recovery

    def set_persisted_offset(self, tp: TP, offset: int) -> None:
        """Do nothing: the store tracks its offsets."""

    def apply_changelog_batch(self, batch: Iterable[EventT[Any]], to_key: Any, to_value: Any) -> None:
        """Do nothing: the store restored itself."""

    def reset_state(self) -> None:
        """Delete copies of the changelog, if there are any; called by `faust reset`."""

    async def backup_partition(self, tp: Any, flush: bool = True, purge: bool = False, keep: int = 1) -> None:
        """Do nothing: the changelog is the backup."""

    def restore_backup(self, tp: Any, latest: bool = True, backup_id: int = 0) -> None:
        """Do nothing: the changelog is the backup."""

    # The mapping for readers of the Faust table

    def __getitem__(self, key: Any) -> Any:
        value = self.reader.look_up(self._encode_key(key))
        if value is None:
            raise KeyError(key)
        return self._decode_value(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(f"table {self.table_name}: written by its shards only; publish to the topic instead")

    def __delitem__(self, key: Any) -> None:
        raise TypeError(f"table {self.table_name}: written by its shards only; send sow_delete instead")

    def __iter__(self) -> Iterator[Any]:
        return (self._decode_key(key) for key, _ in self.reader.look_through())

    def __len__(self) -> int:
        return sum(1 for _ in self.reader.look_through())

    def __contains__(self, key: Any) -> bool:
        return self.reader.look_up(self._encode_key(key)) is not None

    def _clear(self) -> None:
        raise TypeError(f"table {self.table_name}: written by its shards only")

"""The store that also keeps its changelog on local disk, registered under `faust.stores` as `lapse-rocksdb`."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lapse.core.shard.changelog import Changelog, Items
from lapse.runtime.journal.store import JournalStore

if TYPE_CHECKING:
    import rocksdict

logger = logging.getLogger(__name__)

_COPY_HOLDS_MS: Final = 12 * 3_600_000
"""The greatest age of a copy, ms. Kafka deletes tombstones a day after it compacted them (`delete.retention.ms`).
Keys that were removed while another worker had the shard would come back from an older copy."""

_CLOCK_STEP_MS: Final = 60_000
"""How far the machine's clock may have been set back since a copy was written, ms."""


class CopyInUse(RuntimeError):
    """Another process has a copy open."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: another process has it open. Each worker needs a data_dir of its own: start this one with "
            "--data-dir, or set data_dir below [lapse]"
        )


class RocksDBStore(JournalStore):
    """Keeps a copy of the changelog on local disk, and reads only its tail at take-over (`lapse-rocksdb://`)."""

    _META = b"\x01meta"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._databases: dict[int, rocksdict.Rdict] = {}

    def _path(self, partition: int) -> Path:
        return Path(str(self.app.conf.tabledir)) / f"{self.table_name}-{partition}.rocksdb"

    def _open(self, partition: int) -> Changelog:
        path = self._path(partition)
        path.parent.mkdir(parents=True, exist_ok=True)
        import rocksdict  # takes 6 MiB, so it is imported only if needed

        try:
            database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
        except Exception as error:  # the library has no classes of errors
            if "LOCK" not in str(error):
                raise
            raise CopyInUse(path) from error
        meta = database.get(self._META)
        if meta is not None and (fault := self._fault_of(meta)):
            logger.info("%s: %s; the changelog is read instead", path, fault)
            database.close()
            rocksdict.Rdict.destroy(str(path))
            database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
            meta = None
        self._databases[partition] = database
        changelog = Changelog(self.owner.records())
        if meta is not None:
            changelog.next_offset = int.from_bytes(meta[:8], "big")
            changelog.epoch = int.from_bytes(meta[8:16], "big")
            for key, value in database.items():  # in raw mode keys are bytes, despite the annotation
                if isinstance(key, bytes) and key != self._META:
                    changelog.put(key, value)
        return changelog

    def _fault_of(self, meta: bytes) -> str:
        """Return why a copy must not be used; empty if it may be used."""
        if meta[24:] != self._topic_id.encode():
            return "of another changelog topic, which was deleted"
        age_ms = time.time() * 1000 - int.from_bytes(meta[16:24], "big")
        if age_ms > _COPY_HOLDS_MS:
            return f"older than {_COPY_HOLDS_MS // 3_600_000} h"
        if age_ms < -_CLOCK_STEP_MS:
            return "written later than it is by this machine's clock, so its age is not known"
        return ""

    def _keep(self, partition: int, items: Items, changelog: Changelog) -> None:
        self._write(partition, items, changelog.next_offset, changelog.epoch)

    def _write(self, partition: int, items: Items, next_offset: int, epoch: int) -> None:
        import rocksdict

        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in items:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        meta = (next_offset, epoch, int(time.time() * 1000))
        batch.put(self._META, b"".join(number.to_bytes(8, "big") for number in meta) + self._topic_id.encode())
        self._databases[partition].write(batch)

    def _close(self, partition: int) -> None:
        database = self._databases.pop(partition, None)
        if database is not None:
            database.close()

    def close_copies(self) -> None:
        """Close the databases."""
        for partition in list(self._databases):
            self._close(partition)

    def reset_state(self) -> None:
        """Delete the local copies. The changelog has all of their contents."""
        remove_copies(Path(str(self.app.conf.tabledir)), self.table_name)


def remove_copies(directory: Path, table: str) -> None:
    """Delete the local copies of a table's partitions."""
    copy = re.compile(re.escape(table) + r"-\d+\.rocksdb")  # excludes those of a table `<table>-…`
    for path in directory.glob("*.rocksdb"):
        if copy.fullmatch(path.name) is not None:
            import rocksdict

            rocksdict.Rdict.destroy(str(path))

"""The expiry rule of one shard: calls the entity's function with messages that left, beside the shard (L15, C26).

The shard never waits: it journals the calls to be made, and goes on. The calls are made one by one in the order of
removal, and then dropped from the journal. After a crash those that the journal still has are made again, so each is
made at least once. Payloads wait in memory within a limit, and are read back from the log beyond it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lapse.core.generation import offset_of
from lapse.core.queue.step import Removal
from lapse.core.shard.changelog import Items
from lapse.core.sow.step import Removal as RecordRemoval
from lapse.runtime.letters.expired_message import ExpiredMessage
from lapse.runtime.letters.rule_entry import MOST_MESSAGES, Entry, of_copy, of_removal
from lapse.runtime.letters.rule_process import RuleFigures

logger = logging.getLogger(__name__)

KEY: Final = b"\x00x"
_REST: Final = struct.Struct(">qq")
_KEPT_BYTES: Final = 16 << 20
_RECORD_OVERHEAD_BYTES: Final = 300
_READ_SPAN: Final = 4_000
_RETRY_S: Final = 1.0
_GATHER_S: Final = 0.1
"""How long to collect finished calls before the journal drops them, s."""


class Caller(Protocol):
    """Calls the function; implemented by `RuleProcess`."""

    figures: RuleFigures

    async def call(self, messages: Sequence[ExpiredMessage]) -> None:
        """Call the function for each message; return when each call has ended, in whatever way."""


class Reader(Protocol):
    """Reads records back; implemented by `LogReader`."""

    async def read(self, topic: str, partition: int, first: int, last: int) -> Sequence[Any]:
        """Return records from `first` on, at least up to `last`."""


@dataclass(slots=True)
class _Pending:
    key: bytes
    entry: Entry
    records: Sequence[Any | None] | None
    size: int


class ExpiryRule:
    """The calls of one shard.

    Args:
        entity: name of the entity.
        epoch: the shard's epoch.
        caller: calls the function.
        reader: reads payloads back.
        journal: the runtime's keys of the changelog. Calls that earlier epochs left there are made again.
    """

    def __init__(
        self, entity: str, epoch: int, caller: Caller, reader: Reader, journal: Mapping[bytes, bytes] | None = None
    ) -> None:
        self._entity = entity
        self._epoch = epoch
        self._caller = caller
        self._reader = reader
        self._number = 0
        self._kept = 0
        self._done: list[bytes] = []
        self._news = asyncio.Event()
        self._wake: Callable[[], None] | None = None
        self._gathering = False
        self._task: asyncio.Task[None] | None = None
        left = sorted(item for item in (journal or {}).items() if item[0].startswith(KEY))
        self._pending = deque(_Pending(key, Entry.decode(value), None, 0) for key, value in left)

    @property
    def waiting(self) -> int:
        """The number of messages for which the function must still be called."""
        return sum(len(one.entry) for one in self._pending)

    def start(self, wake: Callable[[], None]) -> None:
        """Start to call. `wake` makes the shard take another step, so that the journal drops finished calls."""
        self._wake = wake
        self._news.set()
        self._task = asyncio.create_task(self._run(), name=f"on_expire {self._entity}")

    def stop(self) -> None:
        """Stop calling, because the shard is given up. Its next owner makes the remaining calls."""
        if self._task is not None:
            self._task.cancel()

    # The interface for the shard's machine in a step. The results must be durable before the step is.

    def removed(self, removal: Removal, records: Sequence[Any | None]) -> Items:
        """Add calls for messages that left a queue, with their records; return journal items."""
        return [
            self._add(entry, records[MOST_MESSAGES * at : MOST_MESSAGES * (at + 1)])
            for at, entry in enumerate(of_removal(removal))
        ]

    def copied(self, copies: Sequence[RecordRemoval]) -> Items:
        """Add calls for records that left a SOW topic; return journal items."""
        return [self._add(of_copy(left), None) for left in copies]

    def forgotten(self) -> Items:
        """Return items that drop finished calls from the journal."""
        done, self._done = self._done, []
        return [(key, None) for key in done]

    def _add(self, entry: Entry, records: Sequence[Any | None] | None) -> tuple[bytes, bytes | None]:
        self._number += 1
        key = KEY + _REST.pack(self._epoch, self._number)
        size = 0
        if records is not None:
            size = sum(len(record.value or b"") + _RECORD_OVERHEAD_BYTES for record in records if record is not None)
            if self._kept + size > _KEPT_BYTES:
                records, size = None, 0
        self._kept += size
        self._pending.append(_Pending(key, entry, records, size))
        self._news.set()
        return key, entry.encode()

    # The calls beside the shard

    async def _run(self) -> None:
        while True:
            if not self._pending:
                self._news.clear()
                await self._news.wait()
            pending = self._pending[0]
            try:
                await self._caller.call(await self._messages(pending))
            except Exception as error:  # noqa: BLE001  # no error here may harm the shard
                logger.warning("%s, on_expire: %s; trying again in a second", self._entity, error)
                await asyncio.sleep(_RETRY_S)
                continue
            self._pending.popleft()
            self._kept -= pending.size
            self._done.append(pending.key)
            if not self._gathering:
                self._gathering = True
                asyncio.get_running_loop().call_later(_GATHER_S, self._gathered)

    def _gathered(self) -> None:
        self._gathering = False
        if self._wake is not None:
            self._wake()

    async def _messages(self, pending: _Pending) -> list[ExpiredMessage]:
        entry, records = pending.entry, pending.records
        if entry.copy is not None:
            return [entry.message(self._entity, 0, None)]
        if records is None:
            records = await self._read(entry)
        return [entry.message(self._entity, at, record) for at, record in enumerate(records)]

    async def _read(self, entry: Entry) -> list[Any | None]:
        """Return the records of an entry, read in stretches of the log; None for those that Kafka no longer has."""
        found: dict[int, Any] = {}
        at = 0
        while at < len(entry):
            first, stop = entry.offsets[at], at
            while stop < len(entry) and entry.offsets[stop] - first < _READ_SPAN:
                stop += 1
            for record in await self._reader.read(
                entry.topic, entry.partition, offset_of(first), offset_of(entry.offsets[stop - 1])
            ):
                found[record.offset] = record
            at = stop
        return [found.get(offset_of(offset)) for offset in entry.offsets]

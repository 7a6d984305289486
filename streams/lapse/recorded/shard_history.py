"""A queue's shard as it was at an instant, from its journal alone (D7).

A step counts from the instant on at which Kafka stored its journal. The state comes back as it does after a crash: by
the same code, from the records up to that instant. So it holds what a peek showed then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lapse.core.lifetime import Expiration
from lapse.core.queue.answer import queued_message
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.life.message_state import State
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Queued
from lapse.core.shard.changelog import EPOCH_HEADER, Changelog
from lapse.core.shard.compaction import Compaction
from lapse.protocol.answer import QueuedMessage

_ALL: Final = 1 << 60


class ShardHistory:
    """Goes through a shard's journal, as far as Kafka still has it.

    Args:
        queue: the queue's name.
        at_ms: the instant, ms since the epoch.
        acts: whether the queue acted on lifetimes then; if not, messages past their deadlines were there (L6, L9).

    Attributes:
        exact_since_ms: from this instant on nothing is missing, ms since the epoch; None = nothing ever went.
    """

    def __init__(self, queue: str, at_ms: int, acts: bool = True) -> None:
        self._queue = queue
        self._acts = acts
        self._at_ms = at_ms
        self._then = Changelog()
        self._over = False
        self._compaction = Compaction()
        self.exact_since_ms: int | None = None

    def take(self, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, epoch: bytes | None) -> None:
        """Take in the next record.

        Args:
            offset: its offset.
            timestamp_ms: when Kafka stored it, ms since the epoch.
            key: its key.
            value: its value; None = the key is gone.
            epoch: its header that says who wrote it, as it stands there; None = it has none.
        """
        was_whole = self._compaction.whole
        self._compaction.take(offset, key)
        if not (was_whole and self._compaction.whole):
            self.exact_since_ms = timestamp_ms
        self._over = self._over or timestamp_ms > self._at_ms
        if not self._over:
            self._then.take(key, value, [] if epoch is None else [(EPOCH_HEADER, epoch)])

    @property
    def exact(self) -> bool:
        """Whether nothing of the instant is missing; behind the journal's last record nothing ever is."""
        return self.exact_since_ms is None or self._at_ms >= self.exact_since_ms

    def messages(self) -> Iterator[QueuedMessage]:
        """The messages, in the queue's order; what a barrier or a rate waits for is left out.

        A message past its deadline is left out also if its shard had not removed it yet, unless a lease protects it
        then (Q10).

        Raises:
            ValueError: it is not exact, or the journal is of another version.
        """
        if not self.exact:
            raise ValueError(f"{self._queue}: the journal begins after {self._at_ms}")
        settings = QueueSettings(name=self._queue, expiration=Expiration(enabled=self._acts))
        shard = QueueShard(settings, restore(self._then.items()).state)
        for one in shard.peek(0, _ALL, "", self._at_ms, lambda _: ""):
            if not self._is_over(one):
                yield queued_message(one)

    def _is_over(self, one: Queued) -> bool:
        """Return whether a message has expired by the instant. Of a dying one only the letter is left."""
        if not self._acts or one.pending or one.deadline_ms is None or one.deadline_ms > self._at_ms:
            return False
        return one.state is not State.LEASED or one.until_ms is None or one.until_ms <= self._at_ms

"""The store of lapse's Faust tables. The one that keeps all in memory is registered as `lapse-memory` (`faust.stores`).

A store writes its partition's changelog itself, a whole step in one RecordBatch, and restores itself in the rebalance
hook. So Faust's own recovery has nothing to do, and cannot hang on a changelog whose last record is unreadable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final

from faust.types import TP

from lapse.core.portions import clear_in_portions, in_lots
from lapse.core.shard.changelog import Changelog, Items, claim_key, epoch_header
from lapse.runtime.event_loop_turns import in_turns
from lapse.runtime.journal.lost_shards import LostShards
from lapse.runtime.journal.pre_read import PreRead
from lapse.runtime.journal.shard_owner import ShardOwner
from lapse.runtime.journal.standby import Standby
from lapse.runtime.journal.troubled_shards import TROUBLE, TroubledShards
from lapse.runtime.kafka.lean_service import table_directory
from lapse.runtime.kafka.producer import BatchTooLarge
from lapse.runtime.kafka.table_store import TableStore

logger = logging.getLogger(__name__)

_AHEAD_LOT: Final = 2_000
"""How many records of an epoch's beginning are sent at a time; others have turns in between."""


class Fenced(RuntimeError):
    """The shard belongs to another worker, so everything that this worker still writes for it is void."""


class JournalStore(TableStore):
    """A Faust table store that writes and restores its changelog itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._next_offsets: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._owned: set[int] = set()
        self._lost = LostShards()
        self._troubled = TroubledShards(self.table_name, self._try_again, lambda shard: self.owner.reach(shard))  # noqa: PLW0108
        self._trying: set[asyncio.Task[None]] = set()
        self._held: dict[int, int] = {}
        """By shard, this worker's epoch, if it has a shard already and takes it over anew."""
        self.early: set[int] = set()
        """Shards that were assigned before all topics of their queue had a partition for them (C81)."""
        self._gone = self._assigned = False
        self._generation = 0
        """The group's generation at the last rebalance."""
        self._standby: Standby | None = None
        self._noted: PreRead | None = None
        self._topic_id = ""
        self.last_timestamp_ms: int | None = None
        """The broker's timestamp of the last record written; None if the topic has the writer's timestamps."""

    @property
    def owner(self) -> ShardOwner:
        """The entity that owns the shards.

        Raises:
            RuntimeError: the table was not made by lapse.
        """
        owner: ShardOwner | None = (self.options or {}).get("owner")
        if owner is None:
            raise RuntimeError(
                f"table {self.table_name}: this store belongs to an entity of lapse.toml; use lapse's tables"
            )
        return owner

    @property
    def reader(self) -> ShardOwner:
        """The entity, whose shards know the current contents of the table."""
        return self.owner

    @property
    def changelog_topic(self) -> str:
        """The changelog topic of this store."""
        return str(self.table.changelog_topic.get_topic_name())

    # The interface for Faust

    def persisted_offset(self, tp: TP) -> int | None:
        """Return the offset of the last changelog record in the state, which is always the last record there is."""
        return self._next_offsets.get(tp.partition, 0) - 1

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Give up shards that are no longer assigned, and take over new ones."""
        self._assigned = True
        # In a rebalance that this worker missed, another worker may have had a shard, or ended the entity.
        has_missed = self._lost.settle() or generation_id != self._generation + 1
        self._generation = generation_id
        waiting = self._troubled.settle()
        if self._gone:
            return
        mine = {tp.partition for tp in assigned if tp.topic == self.changelog_topic} - self.owner.stopped
        if has_missed and self._owned and not await self.owner.exists():
            mine = self._was_deleted()
        for partition in sorted(waiting - mine):
            self._troubled.forget(partition)
            self.owner.let_go(partition)
        for partition in sorted(self._owned - mine):
            await self._release(partition)
        owned = sorted(self._owned) if has_missed else []
        mine_now = [False] * len(owned)
        # Another entity of the name may have a journal that ends where the deleted one's did (C4, C42).
        if owned and await self.owner.topic_id(self.changelog_topic) == self._topic_id:
            mine_now = await asyncio.gather(*map(self._is_still_mine, owned))
        for partition, mine_still in zip(owned, mine_now, strict=True):
            if not mine_still:
                logger.warning("%s, partition %d: another worker has owned it meanwhile", self.table_name, partition)
                await self._release(partition)
        coming, self.early = sorted(mine - self._owned), set()
        if not coming and self._standby is None and not self.owner.stands_by:
            self._pre_read().note(self._owned)  # most entities at most rebalances: their turns are left to others
            return
        for partition in coming:
            self.owner.hold(partition)
        tables: Any = self.app.tables
        tables.begin(self.table_name, self._take_over_coming(mine, coming))

    def _was_deleted(self) -> set[int]:
        logger.warning("%s: was deleted; there is nothing to take over", self.table_name)
        return set()

    async def _take_over_coming(self, mine: set[int], coming: list[int]) -> None:
        """Take over the shards in `coming`, beside those of other tables; follow the changelogs of the others."""
        if coming and not await self.owner.exists():
            for partition in coming:
                self.owner.let_go(partition)
            coming = sorted(self._was_deleted())
        if coming and coming[-1] >= self.owner.partitions:
            await self.owner.look_at_size(coming[-1] + 1)
            self.early = {partition for partition in coming if partition >= self.owner.partitions}
            for partition in self.early:
                self.owner.let_go(partition)
            coming = [partition for partition in coming if partition not in self.early]
        await self._look_at_changelog()
        await asyncio.gather(*(self._take_over(partition) for partition in coming))
        self._pre_read().note(self._owned)
        if self.owner.stands_by:
            self._follow(set(range(self.owner.partitions)) - self._owned)
        elif self._standby is not None:
            # The shards are assigned, so the pre-read has served its purpose.
            standby, self._standby = self._standby, None
            await standby.stop()

    async def _release(self, partition: int) -> None:
        self._owned.discard(partition)
        await self.owner.release(partition)
        self._close(partition)

    async def renew(self) -> None:
        """Take over this worker's shards anew, because the topics that they read have changed (C42, C52, C81)."""
        for partition in sorted(self._owned - self.owner.stopped):
            if partition in self._lost:
                continue
            await self._release(partition)
            if await self.owner.exists():
                await self._take_over(partition, self._epochs[partition])

    async def on_start(self) -> None:
        """Read the changelogs of the shards that this worker had, until shards are assigned."""
        shards = self._pre_read().shards(self.owner.partitions) if self.owner.reads_ahead else set()
        if not shards or not self.owner.may_pre_read():
            return
        await self._look_at_changelog()
        if not self._assigned:
            self._follow(shards)

    def _pre_read(self) -> PreRead:
        if self._noted is None:
            self._noted = PreRead(table_directory(self.app) / f"{self.table_name}.shards")
        return self._noted

    def _follow(self, shards: set[int]) -> None:
        """Follow the changelogs of these shards from now on."""
        if self._standby is None:
            settings = self.owner.changelog_reader.settings
            self._standby = Standby(settings, self.changelog_topic, self._open, self._keep, self._close)
        self._standby.follow(shards)

    async def _look_at_changelog(self) -> None:
        """Note the id of the changelog topic. What was read of a deleted one is dropped (C42)."""
        topic_id = await self.owner.topic_id(self.changelog_topic)
        if self._standby is not None and topic_id != self._topic_id:
            await self._standby.stop()
        self._topic_id = topic_id

    async def on_stop(self) -> None:
        """Stop following changelogs."""
        self._lost.settle()
        self._troubled.settle()
        if self._standby is not None:
            await self._standby.stop()

    async def _claimed_epochs(self, partition: int) -> bool:
        """Return whether nobody has claimed a higher epoch since this store last wrote."""
        expected, epoch = self._next_offsets[partition], self._epochs[partition]
        if await self.owner.changelog_end(partition) == expected:
            return True
        since = Changelog(epoch=epoch, next_offset=expected)
        await self.owner.changelog_reader.read(self.changelog_topic, partition, since)
        return since.epoch == epoch

    async def _is_still_mine(self, partition: int) -> bool:
        """Return the same as `_claimed_epochs`; True if no broker answers, because the next write will show it."""
        try:
            return await self._claimed_epochs(partition)
        except TROUBLE as error:
            logger.warning("%s, partition %d: its owner cannot be looked up now: %s", self.table_name, partition, error)
            return True

    async def confirm(self, partition: int) -> None:
        """Check that this worker still owns the shard, before it writes something that cannot be undone.

        Raises:
            Fenced: another worker has taken it over.
        """
        if not await self._claimed_epochs(partition):
            raise Fenced(_ended(self._epochs[partition]))

    def lose(self, partition: int, why: Fenced) -> None:
        """Note that another worker owns a shard. The next rebalance says which one."""
        self._lost.note(self.table_name, partition, why)

    async def _take_over(self, partition: int, held: int | None = None) -> None:
        """Take a shard over. If another worker has it meanwhile, give up this shard only.

        If a broker refuses or does not answer, try again after a while (C52).

        Args:
            partition: the shard's number.
            held: its epoch, if this worker has the shard already; None for a new shard.
        """
        if held is None:
            self._held.pop(partition, None)
        else:
            self._held[partition] = held
        try:
            await self._troubled.attempt(partition, self._restore(partition, held), lambda: partition in self._owned)
        except (Fenced, *TROUBLE) as error:
            await self.owner.abandon(partition)
            self._close(partition)
            if isinstance(error, Fenced):
                self._troubled.forget(partition)
                self.lose(partition, error)
            else:
                self.owner.rest(partition)
                self._troubled.note(partition, error)
        else:
            if self._troubled.healed(partition):
                self._pre_read().note(self._owned)

    def _try_again(self, partition: int) -> None:
        task = asyncio.create_task(self._take_over_again(partition), name=f"take-over {self.table_name} again")
        self._trying.add(task)
        task.add_done_callback(self._trying.discard)

    async def _take_over_again(self, partition: int) -> None:
        """Take a shard over once more, unless the group has assigned it to another worker meanwhile."""
        tables: Any = self.app.tables
        async with tables.still() as open_:
            if open_ and self._troubled.begins(partition):
                self.owner.hold(partition)
                tables.begin(self.table_name, self._take_over(partition, self._held.get(partition)))

    async def give_up(self, partition: int, why: Exception) -> None:
        """Release a shard whose writes Kafka refuses; it is taken over again later."""
        if partition in self._owned and partition not in self._lost:
            await self._release(partition)
            self.owner.rest(partition)
            self._held[partition] = self._epochs[partition]  # whoever has claimed a higher one has it
            self._troubled.note(partition, why)

    async def _restore(self, partition: int, held: int | None) -> None:
        began, owner, topic = time.monotonic(), self.owner, self.changelog_topic
        followed = None if self._standby is None else self._standby.hand_over(partition)
        changelog = self._open(partition) if followed is None else followed
        kept, reader = changelog.next_offset, owner.changelog_reader

        def keep(items: Items) -> None:
            self._keep(partition, items, changelog)

        await reader.read(topic, partition, changelog, keep)
        if held is not None and changelog.epoch > held:
            raise Fenced(_ended(held))
        if not changelog.epoch:
            # The changelog is new. Deliveries may be older: their readers accept only higher epochs than they know.
            changelog.epoch = await owner.last_epoch(partition)
        while True:
            epoch = changelog.epoch + 1
            if held is not None:
                self._held[partition] = epoch  # if this fails, the claim is this worker's own
            await owner.prepare(partition, epoch)
            first = [] if changelog.next_offset else owner.first_records(partition)
            claim: Items = [(claim_key(epoch), owner.worker_name.encode()), *first]
            began_s = time.monotonic()
            sent, _ = await owner.journal_producer.send_atomically(topic, partition, claim, epoch_header(epoch))
            claimed = await sent
            claimed_at = claimed.offset
            if claimed.timestamp_type == 1:  # the clock is needed before the shard decides anything
                owner.clock.measured(began_s, time.monotonic(), claimed.timestamp)
            if claimed_at == changelog.next_offset:
                # Nobody else has written since, so only the claim would be read.
                for one in claim:
                    changelog.take(*one, epoch_header(epoch))
                changelog.next_offset = claimed_at + len(claim)
                keep([*claim])
            # Records before the claim count; those of lower epochs behind it do not.
            while changelog.next_offset <= claimed_at:
                await reader.read(topic, partition, changelog, keep)
            if changelog.epoch == epoch and changelog.contested != epoch:
                break
        self._next_offsets[partition], self._epochs[partition] = changelog.next_offset, epoch
        logger.info(
            "%s, partition %d: restored %d keys (changelog read from %d to %d) in %.2f s; epoch %d",
            self.table_name,
            partition,
            len(changelog.latest) + len(changelog.runtime),
            kept,
            changelog.next_offset,
            time.monotonic() - began,
            epoch,
        )
        await owner.take_over(partition, epoch, changelog)
        self._owned.add(partition)
        if isinstance(changelog.latest, dict):
            await in_turns(clear_in_portions(changelog.latest))
        changelog.latest.clear()

    # The interface for the shard's runner

    async def commit(self, partition: int, epoch: int, ahead: Items, items: Items) -> int:
        """Make a step durable.

        Args:
            partition: the shard's number.
            epoch: the epoch that writes.
            ahead: items that may be split into batches. All are durable before `items` is sent.
            items: the items of one RecordBatch: all of them become durable, or none.

        Returns:
            How many bytes were written, before compression.

        Raises:
            BatchTooLarge: `items` does not fit into one RecordBatch.
            Fenced: another worker has taken the shard over, and the written records are void.
        """
        if self._epochs[partition] != epoch:  # what goes on of a shard that was lost, beside its next epoch here
            raise Fenced(_ended(epoch))
        expected, ahead_bytes = self._next_offsets[partition], _bytes_of(ahead)
        owner, topic, headers = self.owner, self.changelog_topic, epoch_header(epoch)
        if ahead:
            if ahead_bytes + _bytes_of(items) < 1 << 20:
                ahead, items, ahead_bytes = [], [*ahead, *items], 0
            else:
                for some in in_lots(ahead, _AHEAD_LOT):
                    await owner.journal_producer.write_in_batches(topic, partition, some, headers)
                expected += len(ahead)
        sent, items_bytes = await owner.journal_producer.send_atomically(topic, partition, items, headers)
        metadata = await sent
        if metadata.offset != expected:
            # Another process has written: a former owner with a lower epoch, or the new owner.
            await self.confirm(partition)
        self._next_offsets[partition] = metadata.offset + len(items)
        self.last_timestamp_ms = metadata.timestamp if metadata.timestamp_type == 1 else None
        self._write(partition, [*ahead, *items], self._next_offsets[partition], epoch)
        return ahead_bytes + items_bytes

    async def forget_copies(self) -> None:
        """Delete copies of the changelog, which no longer exists, and do nothing more."""
        self._gone = True
        self._lost.settle()
        self._troubled.settle()
        if self._standby is not None:
            await self._standby.stop()
        for partition in self._owned:
            self._close(partition)
        self._owned.clear()
        self.reset_state()

    # What differs between memory and disk

    def close_copies(self) -> None:
        """Close what is kept on disk, once no shard writes any more. Faust stops stores before that."""

    def _open(self, partition: int) -> Changelog:
        """Return the kept contents of a changelog partition; nothing in this class."""
        return Changelog(self.owner.records())

    def _keep(self, partition: int, items: Items, changelog: Changelog) -> None:
        """Keep records that were read from the changelog; do nothing in this class."""

    def _write(self, partition: int, items: Items, next_offset: int, epoch: int) -> None:
        """Keep records that were written to the changelog; do nothing in this class."""

    def _close(self, partition: int) -> None:
        """Close a partition; do nothing in this class."""


class MemoryStore(JournalStore):
    """State in memory only: at take-over the whole changelog partition is read (`lapse-memory://`)."""


def _ended(epoch: int) -> str:
    return f"another worker has taken the shard over; epoch {epoch} is at its end"


def _bytes_of(items: Items) -> int:
    """Return about how many bytes items take in a log."""
    return sum(len(value or b"") + len(key) + 64 for key, value in items)


__all__ = ["BatchTooLarge", "JournalStore", "MemoryStore", "ShardOwner"]

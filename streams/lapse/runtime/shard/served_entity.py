"""An entity on a worker: the Faust table of a queue or SOW topic, and the shards that this worker owns."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import faust
import orjson
from aiokafka.errors import TopicAuthorizationFailedError

from lapse.config import Config, QueueConfig, SowConfig
from lapse.core.shard.changelog import Changelog, Items
from lapse.protocol import event, header
from lapse.protocol import topic as names
from lapse.runtime.authorization.authorizer_memory import remembering
from lapse.runtime.authorization.command_authorizer import Guard
from lapse.runtime.event_loop_turns import in_turns
from lapse.runtime.journal.changelog_reader import ChangelogReader
from lapse.runtime.journal.store import JournalStore
from lapse.runtime.kafka.agent import WorkerAgent
from lapse.runtime.kafka.feeder import Feeder
from lapse.runtime.kafka.lean_service import table_directory
from lapse.runtime.kafka.output import Output
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.letters.expiry_rule import ExpiryRule
from lapse.runtime.letters.rule_processes import RuleProcesses
from lapse.runtime.shard import read_positions
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.named_topics import NamedTopics
from lapse.runtime.shard.runner import Runner
from lapse.runtime.shard.sent_log import PROGRESS_KEY
from lapse.runtime.shard.services import Services
from lapse.runtime.shard.taken_over import TakenOver, Unwritten
from lapse.runtime.shard.under_way import UnderWay
from lapse.runtime.timers.clock import WorkerClock
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)


class Entity(NamedTopics):
    """One queue or SOW topic on this worker. It owns the runners of the shards that Faust assigned.

    Args:
        name: name of the entity.
        config: its settings.
        partitions: its number of shards.
        services: the objects that the worker's entities share.
    """

    def __init__(self, name: str, config: QueueConfig | SowConfig, partitions: int, services: Services) -> None:
        super().__init__(name, config, partitions)
        self.services = services
        self.runners: dict[int, Runner] = {}
        self._renewed = False
        self._floors: dict[int, dict[str, int]] = {}
        """By shard, the offset at which its epoch begins in each deliveries topic."""
        self._letter_partitions = 0
        """Number of partitions over which the shards spread their letters."""
        self._feeders: dict[int, Feeder] = {}
        self._begun: dict[int, tuple[Machine, list[TP]]] = {}
        """Shards that are being taken over: their machines so far, and the partitions that they read."""
        self.rules = RuleProcesses(name, config)
        self.table: Any = None
        self.app: faust.App | None = None
        self.on_end: Callable[[Entity], None] = lambda _: None
        """Called on the worker of shard 0 when all shards of the entity are stopped."""
        self._topics_read: set[str] = set()
        self._subscribed: tuple[str, ...] = ()
        """The topics whose records Faust fetches."""
        self.stopped: set[int] = set()
        self.forward: str | None = None
        """The topic to which a queue forwards, from the next take-over on; None if it does not (Q21)."""
        self.guard: Guard | None = None
        """The rights of users; None if everybody may do everything (X4)."""
        self._tasks: set[asyncio.Task[None]] = set()

    def declare(self, app: faust.App, agent: WorkerAgent, store: str) -> None:
        """Create the entity's table, and let the worker's agent read its topics."""
        self.app = app
        self.table = app.Table(
            names.table(self.name),
            partitions=self.partitions,
            store=store,
            options={"owner": self},
            key_type=bytes,
            value_type=bytes,
        )
        commands = names.commands(self.name)
        topics = [commands] if self.has_own_readers or self.apart else [*self.config.underlying(self.name), commands]
        changelog = str(self.table.changelog_topic.get_topic_name())
        self._topics_read, self._subscribed = {*topics, changelog}, tuple(topics)
        agent.add(self.name, topics, self.receive, changelog)

    def topics_read(self) -> set[str]:
        """Return the topics that Faust reads. A worker gets the same partitions of all of them."""
        return self._topics_read

    def receive(self, tp: TP, records: Sequence[Any]) -> None:
        """Hand a batch to its shard."""
        runner = self.runners.get(tp.partition)
        feeder = self._feeders.get(tp.partition)
        if runner is not None and (feeder is None or not feeder.reads(tp)):
            runner.receive(tp, records)

    # The interface for the store

    @property
    def journal_producer(self) -> BatchProducer:
        """The producer for the changelog."""
        return self.services.journal_producer

    @property
    def changelog_reader(self) -> ChangelogReader:
        """The reader of the changelog."""
        return self.services.changelog_reader

    @property
    def clock(self) -> WorkerClock:
        """The broker's clock."""
        return self.services.clock

    @property
    def worker_name(self) -> str:
        """The name in claims of epochs, with the version of the definition that counts from then on (C66)."""
        version = self.services.versions.get(self.name)
        return self.services.worker_name + (f", definition {version}" if version else "")

    @property
    def stands_by(self) -> bool:
        """Whether this worker follows the changelogs of shards at other workers."""
        return self.services.stands_by

    @property
    def reads_ahead(self) -> bool:
        """Whether changelogs are read while the group waits for a dead member."""
        return self.services.reads_ahead

    def may_pre_read(self) -> bool:
        """Return whether to read the changelog while the group waits for a dead member."""
        return self.services.may_pre_read()

    def records(self) -> MutableMapping[bytes, bytes]:
        """Return an empty mapping for the contents of a changelog partition."""
        return {}

    async def changelog_end(self, partition: int) -> int:
        """Return where the changelog partition ends now, whatever transaction somebody else has left open there."""
        tp, read = TP(self._store().changelog_topic, partition), self.services.changelog_reader
        while (end := await read.end(*tp)) is None:
            await self.services.aside_reader.ends([tp])  # waits for the leader; raises without it
        return end

    async def topic_id(self, topic: str) -> str:
        """Return the id of a topic; empty if it does not exist."""
        return (await self.services.topic_ids.of([topic])).get(topic, "")

    async def last_epoch(self, partition: int) -> int:
        """Return the epoch of the last delivery or event; 0 if there is none. What anybody else has written is passed.

        Events outlast a deleted entity. Another one of its name has other epochs, so that what names a delivery of the
        old one settles none of the new one's (C13). The events of a temporary entity go with it, and its clients may
        know its epochs. So the epochs of each one begin at the instant at which it is first served, and so do those of
        an entity whose first version goes on from those of a deleted one (C64).
        """
        search = self.services.changelog_reader.search_back
        epochs = [
            await search(one, partition, lambda record: header.epoch_of(dict(record.headers)))
            for one in self.deliveries
        ]
        try:
            epochs.append(await search(names.events(self.name), partition, lambda record: event.epoch_of(record.value)))
        except TopicAuthorizationFailedError:
            logger.info("%s: its events may not be read; if it existed before, its epochs are counted anew", self.name)
        begins_late = self.config.auto_delete_on_idle or self.services.versions.get(self.name, 1) > 1
        return max(epochs) or (self.services.clock.stamp_ms() if begins_late else 0)

    @property
    def deliveries(self) -> list[str]:
        """Every topic with deliveries and answers for clients."""
        return [names.deliveries(self.name), *(() if self.guard is None else self.guard.deliveries)]

    async def exists(self) -> bool:
        """Return whether the entity's topics exist. It may be deleted without this worker knowing."""
        own = {names.commands(self.name), names.deliveries(self.name), self._store().changelog_topic}
        return own <= (await self.services.topic_ids.of(own)).keys()

    async def prepare(self, partition: int, epoch: int) -> None:
        """Tell readers of deliveries that a new epoch begins, before its owner writes anything else."""
        headers = [(header.KIND, b"epoch"), (header.EPOCH, b"%d" % epoch), (header.SHARDS, b"%d" % self.partitions)]
        outputs = [Output(deliveries, partition, None, b"", headers) for deliveries in self.deliveries]
        begun = [await future for future in await self.services.output_producer.send([*outputs])]
        self._floors[partition] = {metadata.topic: metadata.offset for metadata in begun}

    async def take_over(self, partition: int, epoch: int, changelog: Changelog) -> None:
        """Build the shard from its changelog, and start its runner."""
        commands = TP(names.commands(self.name), partition)
        self._note(await self.services.topic_ids.shapes(self.targets))
        self._letter_partitions = self.letter_partitions()
        known: dict[str, Any] = orjson.loads(changelog.progress() or b"{}")
        noted = known.pop(PROGRESS_KEY, None)
        feeder = await self._feeder(partition, await self._waits(partition, changelog, known))
        if feeder is not None:
            self._feeders[partition] = feeder
        sources = self._sources(partition) if feeder is None else await feeder.connect()
        since = epoch if changelog.first_epoch > 1 else 0
        found = await read_positions.find(self.name, self.config, self.services, [*sources, commands], known, since)
        positions, ends = found.offsets, await self.services.log_reader.ends(found.offsets)
        await self.services.one_by_one.turn()
        known_to = {tp: offset for tp, offset in positions.items() if offset}
        machine = await self.machine(partition, epoch, changelog, known_to)
        machine.recall(epoch, changelog.runtime)
        self._begun[partition] = machine, sources
        await self._begins(partition, epoch, changelog, machine, known)
        machine.under_way = self._under_way(partition)
        machine.under_way.look(positions)
        await self._guard(machine, commands, positions[commands])
        runner = Runner(
            entity=self.name,
            partition=partition,
            epoch=epoch,
            machine=machine,
            store=self._store(),
            producer=self.services.output_producer,
            letters=self.services.letters,
            reader=self._consumer() if feeder is None else feeder,
            log=self.services.log_reader,
            clock=self.services.clock,
            watch=self.services.watch,
            commands_topic=commands.topic,
            found=TakenOver(
                positions=positions,
                topics=found.topics,
                catch_up=ends[commands],
                merge_until={tp: ends[tp] for tp in sources},
                floors=self._floors.pop(partition, {}) if isinstance(self.config, QueueConfig) else {},
                unwritten=self.unwritten(machine, noted),
                gaps=found.gaps,
            ),
            turns=self.services.step_turns,
            on_stopped=self._stopped,
        )
        try:
            if feeder is not None:
                feeder.begin(runner, {tp: positions[tp] for tp in ([*sources, commands] if self._renewed else sources)})
            await self._consumer().flows.wait()  # heartbeats count from when the shard can answer (C5)
            await runner.start()
        except BaseException:  # the next owner begins anew
            runner.abandon()
            raise
        self.runners[partition] = runner
        del self._begun[partition]
        self.let_go(partition)

    async def _guard(self, machine: Machine, commands: TP, position: int) -> None:
        """Let a shard's machine check the senders of commands, where users are configured (X4)."""
        if self.guard is not None:
            reader, now_ms = self.services.aside_reader, self.services.clock.now_ms()
            machine.guarded(await remembering(self.guard, commands, position, reader, now_ms))

    async def abandon(self, partition: int) -> None:
        """Undo a take-over that has begun: it failed, or another worker has the shard meanwhile."""
        feeder = self._feeders.pop(partition, None)
        self._floors.pop(partition, None)
        if feeder is not None:
            await feeder.stop()
        if partition in self._begun:
            await self._put_away(*self._begun.pop(partition))
        self.let_go(partition)

    async def reach(self, partition: int) -> None:
        """Wait until the leaders of all logs answer that a take-over needs. Letters and forwarding can wait."""
        own = (names.commands(self.name), self._store().changelog_topic, *self.deliveries)
        tps = self.shares(partition, await self.services.topic_ids.shapes(self.config.underlying(self.name)))
        await self.services.aside_reader.existing_ends([*(TP(topic, partition) for topic in own), *tps])

    def let_go(self, partition: int) -> None:
        """Fetch again the sources of a shard that were held during its take-over."""
        self._consumer().let_go((self.name, partition), self._brought(partition))

    def hold(self, partition: int) -> None:
        """Do not fetch the sources of a shard before it is taken over."""
        self.services.needed.expect({names.commands(self.name), *self.deliveries, self._store().changelog_topic})
        self.services.needed.expect(self.targets.keys() - self._lacking)
        self._consumer().hold((self.name, partition), self._brought(partition))

    def rest(self, partition: int) -> None:
        """Fetch the sources of a shard only if others read them, because it is taken over later."""
        self._consumer().rest((self.name, partition), self._brought(partition))

    def _brought(self, partition: int) -> list[TP]:
        """Return the partitions that Faust fetches for a shard."""
        return [TP(topic, partition) for topic in self._subscribed]

    def _under_way(self, partition: int) -> UnderWay:
        """Return the note of what a shard is handling."""
        assert self.app is not None
        path = table_directory(self.app) / names.table(self.name)
        shards = self.partitions if self.has_own_readers else 1
        return UnderWay(path, partition, shards, turns=self.services.one_by_one)

    async def release(self, partition: int) -> None:
        """Give a shard up."""
        if (runner := self.runners.pop(partition, None)) is not None:
            if (feeder := self._feeders.pop(partition, None)) is not None:
                await feeder.stop()
            await runner.stop()
            await self._put_away(runner.machine, runner.sources)

    async def _put_away(self, machine: Machine, sources: Sequence[TP]) -> None:
        """Free what a shard has besides its runner."""
        machine.under_way.close()
        await in_turns(machine.release_memory())
        for tp in sources:
            await self.services.log_reader.release(tp.topic, tp.partition)
            await self.services.aside_reader.release(tp.topic, tp.partition)

    def use_config(self, whole: Config) -> None:
        """Use the settings of this configuration from the next take-over of the shards on (Q23)."""
        self.config = whole.queue.get(self.name) or whole.sow[self.name]
        self.rules.use(self.config)

    async def renew(self) -> None:
        """Take over all shards of this worker anew. From then on they read all topics with consumers of their own."""
        self.apart = self._renewed = True
        await self._store().renew()
        await self.rules.stop_replaced()

    def _needs_take_over(self) -> bool:
        """Return whether shards must be taken over anew because of a new topic, or of added partitions."""
        if 0 < self.letter_partitions() < self._letter_partitions:
            return True
        underlying = (self.shapes.get(topic) for topic in self.config.underlying(self.name))
        grown = any(shape is not None and shape.partitions != self.partitions for shape in underlying)
        return grown and not self.has_own_readers and bool(self.runners.keys() - self._feeders.keys())

    def _stopped(self, partition: int) -> None:
        """Note that a shard of this deleted entity has written its last record."""
        self.stopped.add(partition)
        feeder = self._feeders.pop(partition, None)
        if feeder is not None:
            task = asyncio.create_task(feeder.stop())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if partition == 0:
            self.on_end(self)

    async def forget_copies(self) -> None:
        """Delete the entity's state on disk, so that a new entity of the same name does not find it."""
        await self._store().forget_copies()

    async def close(self) -> None:
        """Stop the rule processes and close copies on disk, once all shards are given up."""
        await self.rules.stop()
        self._store().close_copies()

    def look_up(self, key: bytes) -> bytes | None:
        """Return the current value of a table key; None if no shard of this worker has it."""
        now_ms = self.services.clock.now_ms()
        for runner in self.runners.values():
            value = runner.machine.look_up(key, now_ms)
            if value is not None:
                return value
        return None

    def look_through(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all current keys and values of this worker's shards."""
        now_ms = self.services.clock.now_ms()
        for runner in self.runners.values():
            yield from runner.machine.look_through(now_ms)

    @abstractmethod
    async def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> Machine:
        """Build the state machine of a shard from its changelog, in portions with turns for others in between (C90)."""

    def unwritten(self, machine: Machine, noted: dict[str, Any] | None) -> Unwritten | None:
        """Return a function that finds deliveries that were journaled but not written; None if readers miss none (C55).

        Args:
            machine: the shard's machine.
            noted: the journal's note about deliveries; None if there is none.
        """
        return None

    # More shards (C81), for queues only

    def first_records(self, partition: int) -> Items:
        """Return the first records of a new shard's journal."""
        return []

    async def look_at_size(self, least: int = 0) -> None:
        """Find out whether the entity has more shards by now; at least `least` are known to exist."""
        del least

    async def has_new_shards(self) -> bool:
        """Return whether shards must be taken over anew, because there are more or because a new shard may begin."""
        return False

    async def _waits(self, partition: int, changelog: Changelog, known: dict[str, Any]) -> bool:
        """Return whether a new shard must still wait before it reads. Otherwise put its first offsets into `known`."""
        return False

    async def _begins(
        self, partition: int, epoch: int, changelog: Changelog, machine: Machine, known: dict[str, Any]
    ) -> None:
        """Note facts about a shard before it runs."""
        del partition, epoch, changelog, machine, known

    def rule(self, epoch: int, changelog: Changelog) -> ExpiryRule | None:
        """Return the expiry rule of a shard; None if the entity has none (L15)."""
        process = self.rules.current
        if process is None:
            return None
        return ExpiryRule(self.name, epoch, process, self.services.aside_reader, changelog.runtime)

    def _store(self) -> JournalStore:
        store = self.table.data
        assert isinstance(store, JournalStore)
        return store

    def _consumer(self) -> Any:
        assert self.app is not None
        return self.app.consumer

    async def _feeder(self, partition: int, waits: bool) -> Feeder | None:
        if not (self.has_own_readers or self.apart or waits):
            return None
        services, config = self.services, self.config
        every = isinstance(config, SowConfig) and self.has_own_readers  # every shard reads every partition (C46)
        return Feeder(
            services.connection,
            config.underlying(self.name),
            config.pattern() if isinstance(config, QueueConfig) else None,
            0 if every else partition,
            1 if every else self.partitions,
            self._consumer(),
            services.topic_ids,
            self._most_read(),
            TP(names.commands(self.name), partition) if self._renewed else None,
            waits,
        )

"""The definer: carries out clients' commands about definitions (Q23, C66, C67).

Every worker has one. They form a consumer group over a topic with one partition, so one of them is active at a time. A
command is done when it is answered. A definer that takes over carries out unanswered commands again, which is harmless
because what exists already is left alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError
from aiokafka.structs import TopicPartition
from confluent_kafka import KafkaException

from lapse.config import Config
from lapse.config.definition import Definition
from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.shard.answer import CommandAnswer
from lapse.protocol import topic as names
from lapse.protocol.command import CommandError, Encoding
from lapse.runtime.authorization.authorizer_memory import remembering
from lapse.runtime.authorization.command_authorizer import Admitted, CommandAuthorizer, Guard, admit_all, parted, whose
from lapse.runtime.authorization.refusal_log import RefusalLog
from lapse.runtime.repeated_error import RepeatedError
from lapse.runtime.shard.output import ShardOutput
from lapse.runtime.shard.services import Services
from lapse.runtime.topics.creation_rights import lacking, lacking_on_name
from lapse.runtime.topics.definition_draft import (
    Draft,
    Refused,
    Request,
    check_creation,
    create_and_grant,
    draft,
    remove_lost,
)
from lapse.runtime.topics.definition_request import read_request
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange
from lapse.runtime.topics.deleted_entities import settled
from lapse.runtime.topics.topology import TopologyError
from lapse.runtime.topics.unfinished_creations import UnfinishedCreations
from lapse.runtime.topics.worker_messages import WorkerMessages
from lapse.runtime.tp import TP
from lapse.runtime.watch import end_process_if_failed

logger = logging.getLogger(__name__)

SERVED_S: Final = 2.0
"""How long shards may take to serve a definition, s, before the answer names those that do not (C66)."""

_LATEST_MS: Final = 60_000
"""A command that waited longer, ms, is not begun, because its sender has given up by then."""

OF_WORKERS: Final = b"\x00"
"""Prefix of the keys of records that workers write for each other."""

_LOOK_S: Final = 3.0
_WAIT_MS: Final = 500


class Definer:
    """Carries out commands about definitions.

    Args:
        config: configuration of the deployment, with which the worker was started.
        beside: directory of the files that settings name.
        services: the objects that the worker's entities share.
        guard: the rights of users; None if no users are configured, so that everybody may give commands.
        messages: messages from and to the other workers.
    """

    def __init__(
        self, config: Config, beside: Path, services: Services, guard: Guard | None, messages: WorkerMessages
    ) -> None:
        self._config = config
        self._beside = beside
        self._services = services
        self._guard = guard
        self._messages = messages
        self._definitions = DefinitionsTopic(config)
        self._definer = names.definer(config.lapse.app_id)
        self._topic = names.commands(self._definer)
        self._authorizer: CommandAuthorizer | None = None
        self._refusals = RefusalLog(self._definer)
        self._output = ShardOutput(self._definer, 0, 0, "", 1)
        self._output.users = None if guard is None else guard.entitlements.keys()
        self._creations = UnfinishedCreations(services.connection, self._topic)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Join the group of definers."""
        self._task = asyncio.create_task(self._run(), name="definer")
        self._task.add_done_callback(_ended)

    async def stop(self) -> None:
        """Leave the group. Another worker answers the open commands."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._messages.stop()

    async def _run(self) -> None:
        await self._wait_for_topics()
        await self._messages.start()
        repeated = RepeatedError(logger, f"{self._topic} could not be read, and is tried again")
        while True:
            consumer = AIOKafkaConsumer(
                **self._services.connection,
                group_id=self._topic,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                session_timeout_ms=self._config.lapse.session_timeout,
                heartbeat_interval_ms=self._config.lapse.session_timeout // 3,
            )
            try:
                await consumer.start()
                consumer.subscribe([self._topic], listener=_Listener(self._forget))
                while True:
                    for tp, records in (await consumer.getmany(timeout_ms=_WAIT_MS)).items():
                        for some in one_by_one(records):
                            await self._creations.begin(consumer, tp, some[0].offset)
                            await self._carry_out(tp, some)
                            await consumer.commit({tp: some[-1].offset + 1})
                            self._creations.end()
            except (CommitFailedError, IllegalStateError):
                logger.debug("%s: another worker goes on, and repeats what was not answered", self._topic)
            except (KafkaError, OSError) as error:
                repeated.note(error)
                await asyncio.sleep(_WAIT_MS / 1000)
            finally:
                await consumer.stop()

    async def _wait_for_topics(self) -> None:
        needed = set(names.definer_topics(self._config.lapse.app_id, self._config.creators()))
        warned = False
        while missing := await self._missing(needed):
            if not warned:
                logger.warning(
                    "Clients cannot create entities: missing %s. Run `lapse apply`", ", ".join(sorted(missing))
                )
                warned = True
            await asyncio.sleep(_LOOK_S)

    async def _missing(self, needed: set[str]) -> set[str]:
        """Return which of these topics do not exist; all of them while no broker answers."""
        try:
            return needed - (await self._services.topic_ids.of(needed, once=True)).keys()
        except KafkaException as error:
            logger.debug("cannot look for topics, and tries again: %s", error)
            return needed

    def _forget(self) -> None:
        """Forget what was read, because another worker may have carried out commands meanwhile."""
        self._authorizer = None
        self._creations.forget()

    async def _carry_out(self, tp: TopicPartition, records: list[Any]) -> None:
        if self._guard is not None and self._authorizer is None:
            at, now_ms = TP(tp.topic, tp.partition), self._services.clock.now_ms()
            self._authorizer = await remembering(self._guard, at, records[0].offset, self._services.log_reader, now_ms)
        self._refusals.sum_up()
        for record in records:
            if record.key is not None and record.key.startswith(OF_WORKERS):
                continue
            answer, encoding = await self._command(record)
            if answer is not None:
                for safe in await self._services.output_producer.send([self._output.answer(answer, encoding)]):
                    await safe

    async def _command(self, record: Any) -> tuple[CommandAnswer | None, Encoding]:
        """Carry out one command; return its answer, or None if it gets none."""
        try:
            admitted = admit_all(record) if self._authorizer is None else self._authorizer.read(record)
        except CommandError as error:
            self._refusals.log(whose(record), record.offset, str(error))
            answer = CommandAnswer(error.id, error.command, error.subscription, record.timestamp, error.refusal)
            return (None if error.silent else answer), error.encoding
        command = admitted.command
        if command.command == "depth" and command.top_n == 0:  # a client checks whether any worker is here
            return (None if command.answer in {"none", "errors"} else _answer(admitted, None)), admitted.encoding
        # A creation that was begun is brought to its end, so that no entity is left half made.
        if self._services.clock.now_ms() - record.timestamp > _LATEST_MS and not self._creations.begun:
            logger.warning("%s %s came too late, and is not carried out", command.command, command.entity)
            return None, admitted.encoding
        try:
            answer = await self._define(admitted)
        except Refused as refused:
            self._refusals.log(whose(record), record.offset, str(refused))
            answer = _answer(admitted, refused.refusal)
        except (TopologyError, KafkaException) as error:
            answer = _answer(admitted, Refusal(ErrorCode.SHARD_UNAVAILABLE, f"{command.entity}: {error}. Ask again"))
        silent = command.answer == "none" or (command.answer == "errors" and answer.refusal is None)
        return (None if silent else answer), admitted.encoding

    async def _define(self, admitted: Admitted) -> CommandAnswer:
        """Define an entity.

        Raises:
            Refused: the definition is not allowed.
            TopologyError: the cluster refuses, or does not answer.
        """
        user = parted(admitted.command.id)[0] if self._guard is not None else ""
        request = read_request(admitted.command, user)
        created: set[str] = set()
        try:
            async with self._definitions.one_reader():
                made, shards = await self._definitions.retry_if_outdated(lambda: self._publish(request, user, created))
        except Refused:
            if created:
                there = await asyncio.to_thread(self._definitions.read_to_change)
                await asyncio.to_thread(remove_lost, request, created, there, self._config)
            raise
        except OutdatedChange as error:
            raise Refused(ErrorCode.OUTDATED, str(error)) from error
        late = await self._messages.await_served(request.name, made.after.version, shards, SERVED_S)
        counts = {"version": made.after.version, "shards": shards, "changed": int(made.is_new)}
        waiting = tuple(f"{request.name}:{shard}" for shard in late)
        return _answer(admitted, None, tuple(counts.items()), (("late", waiting),))

    async def _publish(self, request: Request, user: str, created: set[str]) -> tuple[Draft, int]:
        """Check and write a definition; return it, and its number of shards. Add new topics to `created`."""
        if self._guard is not None:
            _check_right(lacking_on_name(self._config, request.name, user), request.name, user)
        there, deleted = await self._settled(request.name)
        made = await asyncio.to_thread(  # settings may be long lists, and shards go on meanwhile (C60)
            draft,
            request,
            there,
            self._config,
            self._beside,
            self._services.clock.stamp_ms(),
            deleted,
            self._definitions.unreadable,
            self._definitions.versions,
        )
        if self._guard is not None:
            _check_right(lacking(made.config, request.name, user), request.name, user)
        cluster, differences, shards = await asyncio.to_thread(made.differences)
        check_creation(request.name, differences)
        if made.differs is not None and made.differs.keys_that_need_empty:
            live = await self._messages.live(request.name, shards, SERVED_S)
            made.check_state(lambda _: live)
        if made.differs is None and any(one.create is not None and request.name in one.bars for one in differences):
            made = made.as_new_entity(request)
        made = made.with_topics(differences, self._creations.topics)
        if made.differs is not None and made.differs.before is None:
            self._messages.forget(request.name)  # what was served of a deleted entity of that name
            await self._creations.note(made.after.made)
        created.update(one.create.name for one in differences if one.create is not None)
        await asyncio.to_thread(create_and_grant, cluster, differences)
        if made.differs is not None:
            await asyncio.to_thread(self._definitions.publish, [made.after], self._beside)
        return made, shards

    async def _settled(self, name: str) -> tuple[dict[str, Definition], frozenset[str]]:
        """Return the definitions, and those that are only left, once nothing of a deleted entity of this name is there.

        The shards decide on an end, and answer, some time before topics and definition go. Who then creates the entity
        anew would be told that it exists, and lose it.

        Raises:
            TopologyError: the cluster does not answer, or the entity's end takes long.
        """
        return await asyncio.to_thread(settled, self._definitions.read_to_change, self._config, {name})


def _check_right(lacked: str, name: str, user: str) -> None:
    """Check that a user lacks nothing to define an entity.

    Raises:
        Refused: something is lacking.
    """
    if lacked:
        raise Refused(
            ErrorCode.FORBIDDEN,
            f"to define {name} like this takes {lacked}; {user} has not got it. Whoever keeps lapse.toml can grant it: "
            f"users.{user}.entitlements",
        )


def one_by_one(records: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield each client's command alone, with the workers' records before it.

    What is answered is committed at once. Carried out again, a command would create what was deleted since.
    """
    some: list[Any] = []
    for record in records:
        some.append(record)
        if record.key is None or not record.key.startswith(OF_WORKERS):
            yield some
            some = []
    if some:
        yield some


def _answer(
    admitted: Admitted,
    refusal: Refusal | None,
    counts: Iterable[tuple[str, int]] = (),
    facts: tuple[tuple[str, object], ...] = (),
) -> CommandAnswer:
    command = admitted.command
    return CommandAnswer(
        command.id, command.command, command.subscription, admitted.at_ms, refusal, tuple(counts), facts
    )


class _Listener(ConsumerRebalanceListener):
    """Notices when another worker becomes active."""

    def __init__(self, revoked: Callable[[], None]) -> None:
        self._revoked = revoked

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Notice that another worker may become active."""
        self._revoked()

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Do nothing."""


def _ended(task: asyncio.Task[None]) -> None:
    end_process_if_failed(task, "carrying out commands about definitions")  # crash-only

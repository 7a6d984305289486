"""Pools of clients for queues and SOW topics. A client stays open between requests, one for each user and entity."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from lapse.core.error_code import ErrorCode
from lapse.core.near_name import did_you_mean
from lapse.protocol import topic
from lapse_client import Publisher
from lapse_client.aio import Queue, SowClient
from lapse_client.error import Closed, ConnectionFailed, EntityDeleted, LapseError
from lapse_client.kafka.connection import entities
from lapse_client.queue.queues import Queues
from lapse_gateway.fault import Fault
from lapse_gateway.user import Caller

_KEPT_S: Final = 120.0
"""How long an unused client stays open, in seconds."""

_NAMES_SHOWN: Final = 20

_QUEUES: Final = "queues"
_TOPICS: Final = "topics"

log = logging.getLogger("lapse_gateway")


class _Closable(Protocol):
    async def close(self) -> None: ...


Client = TypeVar("Client", bound=_Closable)


@dataclass(slots=True)
class _Place(Generic[Client]):
    """A slot of a pool for one client, which may not be open yet. An outdated one is out of the pool."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    client: Client | None = None
    users: int = 0
    used_at_s: float = 0.0
    is_outdated: bool = False


class _Publishing:
    """A synchronous publisher, which sends a batch in order in one call of a thread."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher

    async def close(self) -> None:
        """Flush and close the publisher."""
        await asyncio.to_thread(self.publisher.close)


class _AtAGlance:
    """A client of many queues. Its calls return futures without waiting."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.to_thread(self.queues.close)


class _Pool(Generic[Client]):
    """Clients of one kind, by user and name."""

    def __init__(self, make: Callable[[Caller, str], Awaitable[Client]]) -> None:
        self._make = make
        self._places: dict[tuple[str, str], _Place[Client]] = {}

    @contextlib.asynccontextmanager
    async def use(self, caller: Caller, name: str) -> AsyncIterator[Client]:
        """Lend a client for a block. A client that has failed for good is closed."""
        key = (caller.name, name)
        place = self._places.setdefault(key, _Place())
        place.users += 1
        client: Client | None = None
        try:
            async with place.lock:
                if place.client is None:
                    place.client = await self._make(caller, name)
                client = place.client
            yield client
        except LapseError as error:
            if _is_unusable(error) and client is not None and place.client is client:  # not its successor
                place.client = None
                await _closed(client)
            raise
        finally:
            place.users -= 1
            if place.is_outdated and not place.users and place.client is not None:
                client, place.client = place.client, None
                await _closed(client)
            place.used_at_s = asyncio.get_running_loop().time()
            if place.client is None and not place.users and self._places.get(key) is place:
                del self._places[key]

    def renew(self, caller: Caller, name: str) -> None:
        """Lend another client from now on. Those who use the present one finish first."""
        if (place := self._places.pop((caller.name, name), None)) is not None:
            place.is_outdated = True

    async def sweep(self, kept_s: float = _KEPT_S) -> None:
        """Close the clients that nobody has used for `kept_s` seconds."""
        now = asyncio.get_running_loop().time()
        idle = [key for key, place in self._places.items() if not place.users and now - place.used_at_s >= kept_s]
        places = [self._places.pop(key) for key in idle]
        await asyncio.gather(*(_closed(place.client) for place in places if place.client is not None))


class Clients:
    """All clients of a gateway.

    Args:
        timeout_s: how long to wait for answers, in seconds.

    Attributes:
        timeout_s: see above.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._queues: _Pool[Queue] = _Pool(self._queue)
        self._sow: _Pool[SowClient] = _Pool(self._sow_topic)
        self._publishers: _Pool[_Publishing] = _Pool(self._publisher)
        self._glances: _Pool[_AtAGlance] = _Pool(self._glance)

    def queue(self, caller: Caller, name: str) -> contextlib.AbstractAsyncContextManager[Queue]:
        """Lend the client of a queue for one request."""
        return self._queues.use(caller, name)

    @contextlib.asynccontextmanager
    async def at_a_glance(self, caller: Caller, names: Iterable[str], *, sow: bool = False) -> AsyncIterator[Queues]:
        """Lend the client of many queues, or many SOW topics, for one request."""
        async with self._glances.use(caller, _glance_name(names, sow=sow)) as glance:
            yield glance.queues

    def renew_glance(self, caller: Caller, names: Iterable[str], *, sow: bool = False) -> None:
        """Ask by another client from now on: this one has lost an entity, and would not know its successor."""
        self._glances.renew(caller, _glance_name(names, sow=sow))

    def sow(self, caller: Caller, name: str) -> contextlib.AbstractAsyncContextManager[SowClient]:
        """Lend the client of a SOW topic for one request."""
        return self._sow.use(caller, name)

    @contextlib.asynccontextmanager
    async def publisher(self, caller: Caller) -> AsyncIterator[Publisher]:
        """Lend the caller's publisher for one request."""
        async with self._publishers.use(caller, "") as publishing:
            yield publishing.publisher

    async def sweep(self, kept_s: float = _KEPT_S) -> None:
        """Close the clients that nobody has used for `kept_s` seconds."""
        pools = (self._queues, self._sow, self._publishers, self._glances)
        await asyncio.gather(*(pool.sweep(kept_s) for pool in pools))  # if Kafka is gone, each needs its whole time

    async def _queue(self, caller: Caller, name: str) -> Queue:
        await check_kind(caller, name, sow=False)
        return await Queue(name, connection=caller.connection, timeout_s=self.timeout_s).start()

    async def _sow_topic(self, caller: Caller, name: str) -> SowClient:
        await check_kind(caller, name, sow=True)
        return await SowClient(name, connection=caller.connection, timeout_s=self.timeout_s).__aenter__()

    async def _glance(self, caller: Caller, names: str) -> _AtAGlance:
        kind, *known = names.split("\n")
        queues = Queues(known, sow=kind == _TOPICS, connection=caller.connection, timeout_s=self.timeout_s)
        return _AtAGlance(await asyncio.to_thread(queues.start))

    async def _publisher(self, caller: Caller, _: str) -> _Publishing:
        return _Publishing(Publisher(caller.connection, timeout_s=self.timeout_s))


def _glance_name(names: Iterable[str], *, sow: bool) -> str:
    return "\n".join((_TOPICS if sow else _QUEUES, *sorted(names)))


async def check_kind(caller: Caller, name: str, *, sow: bool, recent: Mapping[str, int] | None = None) -> None:
    """Check that a name is a queue, or with `sow` a SOW topic, on which the caller has any right.

    Args:
        caller: the caller.
        name: the entity.
        sow: whether it must be a SOW topic.
        recent: the topics of the cluster a moment ago. If they say that all is well, nobody is asked.

    Raises:
        Fault: the entity is of the other kind, or the name is not valid; or the caller has no right on it. That is
            also said of names that do not exist.
        UnknownEntity: there is no such entity. It is raised at once. The client would wait for all brokers first.
        ConnectionFailed: no broker answered.
    """
    if not topic.NAME.match(name):
        raise Fault("unknown_entity", f"{name[:40]!r} can name no entity: letters, digits, '.', '_' and '-' only")
    if recent and caller.may_see_some(name) and _is_of_kind(name, recent, sow=sow):
        return
    connection = caller.connection
    topics = await asyncio.to_thread(connection.partitions)
    if not caller.may_see_some(name):  # whether the entity exists or not
        raise Fault(ErrorCode.FORBIDDEN, _no_right(caller, name, entities(topics, sow=sow)))
    if topic.commands(name) not in topics:
        kind, known = "SOW topic" if sow else "queue", entities(topics, sow=sow)
        raise await asyncio.to_thread(connection.unknown, kind, name, known, topic.commands(name))
    if not _is_of_kind(name, topics, sow=sow):
        other, path = ("a queue", "queues") if sow else ("a SOW topic", "sow")
        raise Fault("unknown_entity", f"{name} is {other}: its paths begin with /v1/{path}/{name}")


def _is_of_kind(name: str, topics: Container[str], *, sow: bool) -> bool:
    """Return whether there is a queue with this name, or with `sow` a SOW topic."""
    return topic.commands(name) in topics and (topic.sow(name) in topics) is sow


def _no_right(caller: Caller, name: str, known: Iterable[str]) -> str:
    """Return the text that a caller has no right on a name, with the names on which they have one."""
    seen = sorted(filter(caller.may_see_some, known))
    shown = ", ".join(seen[:_NAMES_SHOWN]) + (" …" if len(seen) > _NAMES_SHOWN else "")
    return (
        f"user {caller.name} has no right on {name}, if it is there{did_you_mean(name, seen)}; they have one on: "
        f"{shown or 'none'}. Correct the name, or add the right to lapse.toml"
    )


def _is_unusable(error: LapseError) -> bool:
    """Return whether the client that raised an error cannot be used again."""
    return isinstance(error, Closed | ConnectionFailed | EntityDeleted)


async def _closed(client: _Closable) -> None:
    try:
        await client.close()
    except LapseError as error:
        log.warning("%s", error)

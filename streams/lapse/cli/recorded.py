"""What a cluster has recorded of a queue, read from its topics; and its events gone through again (X10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

import click
import orjson
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from rich.table import Table

from lapse.cli.tables import print_table
from lapse.config import Config, QueueConfig
from lapse.protocol import event, topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.simulation.arrival import Arrivals
from lapse.simulation.comparison import Comparison, Told, compare, facts
from lapse.simulation.recorded_journal import RecordedJournal
from lapse.simulation.recorded_work import RecordedWork, recorded_arrivals, recorded_work
from lapse.simulation.recording import Recorded, Recording
from lapse.simulation.replay import NotReplayable, ReplayedShard
from lapse_client.connection import Connection
from lapse_client.error import LapseError
from lapse_client.instant import shown
from lapse_client.span import span

_DIFFERENCES_SHOWN: Final = 5


def underlying(name: str, config: QueueConfig, there: Mapping[str, int]) -> list[str]:
    """The underlying topics of a queue that a cluster has."""
    pattern = config.pattern()
    named = [one for one in config.underlying(name) if one in there]
    return named + [one for one in sorted(there) if pattern is not None and one not in named and pattern.fullmatch(one)]


def read(connection: Connection, names: Iterable[str], since_ms: int | None = None) -> Recording:
    """Read topics, as far as they go now.

    Args:
        connection: the cluster.
        names: the topics.
        since_ms: only what was written at this instant or later, ms since the epoch; None = all.

    Raises:
        LapseError: one cannot be read.
    """
    there = connection.partitions()
    topics = {one: there[one] for one in names if one in there}
    return Recording(topics, _records(connection, topics, since_ms))


def _records(connection: Connection, topics: Mapping[str, int], since_ms: int | None) -> Iterator[Recorded]:
    for message in span(connection, topics, since_ms):
        kind, at_ms = message.timestamp()
        headers: Any = message.headers() or ()
        yield Recorded(
            message.topic() or "",
            message.partition() or 0,
            message.offset() or 0,
            at_ms,
            int(kind == TIMESTAMP_LOG_APPEND_TIME),
            message.key(),
            message.value(),
            tuple((name, value if value is not None else b"") for name, value in headers),
        )


def stretch(
    name: str, config: QueueConfig, connection: Connection, since_ms: int | None, until_ms: int | None
) -> tuple[Arrivals, RecordedWork]:
    """What came into a queue, and what its consumers did.

    Args:
        name: the queue.
        config: its settings.
        connection: its cluster.
        since_ms: from when on, ms since the epoch; None = all that is there.
        until_ms: until when; None = to the end.

    Raises:
        LapseError: the topics cannot be read, or hold no message of that stretch.
    """
    there = connection.partitions()
    sources, deliveries, events = underlying(name, config, there), topic.deliveries(name), topic.events(name)
    recording = read(connection, [*sources, deliveries, events], since_ms)
    arrivals = recorded_arrivals(recording, sources, since_ms, until_ms)
    if not len(arrivals):
        raise LapseError(
            f"{name}: its underlying topics ({', '.join(sources) or 'none'}) hold no message of that stretch"
        )
    told = [event.decode(one.value) for one in _all(recording, events) if one.value is not None]
    return arrivals, recorded_work(_all(recording, deliveries), told)


def _all(recording: Recording, name: str) -> Iterator[Any]:
    for partition in range(recording.partitions().get(name, 0)):
        yield from recording.log(name, partition)[:]


def replay(
    name: str, config: Config, connection: Connection, since_ms: int | None, until_ms: int | None
) -> list[Comparison]:
    """Go through all that a queue's shards did, and compare the events.

    Args:
        name: the queue.
        config: the configuration that it had.
        connection: its cluster.
        since_ms: from when on, ms since the epoch; None = from as early as possible.
        until_ms: until when; None = to the end.

    Raises:
        LapseError: the topics cannot be read, or lack something.
    """
    if config.users:
        raise LapseError(f"{name}: deployments with users cannot be gone through again: their commands are signed")
    queue, there = config.queue[name], connection.partitions()
    changelog = topic.changelog(config.lapse.app_id, name)
    if changelog not in there:
        raise LapseError(f"{name}: there is no topic {changelog}; did a worker of this lapse.toml ever run here?")
    own = [changelog, topic.commands(name), topic.deliveries(name), topic.events(name)]
    recording = read(connection, [*own, *underlying(name, queue, there)])
    forward = config.forward_topic(name)
    if forward is not None:
        recording.create(forward, there.get(forward, 1))
    found = []
    for partition in range(there[changelog]):
        journal = RecordedJournal(recording.log(changelog, partition)[:], since_ms, until_ms)
        told = [
            Told(one.timestamp, event.decode(one.value))
            for one in recording.log(topic.events(name), partition)[:]
            if one.value is not None and (until_ms is None or one.timestamp <= until_ms)
        ]
        try:
            again = list(ReplayedShard(name, queue, partition, recording, journal, forward).events())
        except NotReplayable as error:
            raise LapseError(f"{name}, partition {partition}: {error}") from error
        found.append(compare(partition, journal, told, again))
    return found


def show(found: list[Comparison], as_json: bool) -> None:
    """Print what came of it; exit code 1 unless all events are the same."""
    if as_json:
        for one in found:
            for told in one.events:
                click.echo(orjson.dumps(_event(told)))
            click.echo(orjson.dumps(dict(facts(one))))
    else:
        table = Table("partition", "from (UTC)", "epochs", "steps", "recorded", "replayed", "unjournaled", "the same")
        for one in found:
            counts = (one.epochs, one.steps, one.recorded, len(one.events), one.unjournaled)
            table.add_row(str(one.partition), shown(one.began_ms), *map(str, counts), "yes" if one.same else "no")
        print_table(table)
    for one in found:
        _tell(one.partition, "recorded, and did not come again", one.missing)
        _tell(one.partition, "came, and is not recorded", one.extra)
        if not one.in_order:
            click.echo(f"partition {one.partition}: the same events came in another order", err=True)
    if not all(one.same for one in found):
        raise click.exceptions.Exit(1)


def _tell(partition: int, what: str, some: Sequence[event.Event]) -> None:
    for told in some[:_DIFFERENCES_SHOWN]:
        click.echo(f"partition {partition}, {what}: {orjson.dumps(_event(told)).decode()}", err=True)


def _event(told: event.Event) -> dict[str, object]:
    """An event for JSON; a queue's has no key."""
    named = {one.name: getattr(told, one.name) for one in fields(told) if one.name not in ("messages", "key")}
    return {**named, "messages": [_range(one) for one in told.messages]}


def _range(one: BookmarkRange) -> str:
    name = f"{one.topic}:{one.partition}:{one.first}"
    return name if one.first == one.last else f"{name}-{one.last}"

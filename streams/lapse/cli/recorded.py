"""Reads a cluster's records of a queue from its topics, and replays its steps to compare the events (X10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click
import orjson
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, TopicPartition
from rich.table import Table

from lapse.config import Config, QueueConfig
from lapse.config.decided_entities import decide
from lapse.config.definition import Definition
from lapse.core.near_name import did_you_mean
from lapse.protocol import event, topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.runtime.topics.definitions import understood
from lapse.runtime.topics.definitions_reader import note
from lapse.runtime.tp import TP
from lapse.simulation.arrival import Arrivals
from lapse.simulation.comparison import Comparison, RecordedEvent, compare, facts
from lapse.simulation.recorded_journal import RecordedJournal
from lapse.simulation.recorded_work import RecordedWork, recorded_arrivals, recorded_work
from lapse.simulation.recording import Recorded, Recording
from lapse.simulation.replay import NotReplayable, ReplayedShard
from lapse.simulation.serving import Serving, by_version
from lapse.tables import print_table
from lapse_client.error import ConnectionFailed, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.log_offsets import log_bounds, offsets_at
from lapse_client.kafka.span import span
from lapse_client.reading.instant import shown

_DIFFERENCES_SHOWN: Final = 5


def underlying(name: str, config: QueueConfig, there: Mapping[str, int]) -> list[str]:
    """Return the underlying topics of a queue that exist on a cluster."""
    pattern = config.pattern()
    named = [one for one in config.underlying(name) if one in there]
    return named + [one for one in sorted(there) if pattern is not None and one not in named and pattern.fullmatch(one)]


def read(
    connection: Connection, names: Iterable[str], since_ms: int | None = None, *, changelog: str = ""
) -> Recording:
    """Read topics up to their present ends.

    Args:
        connection: connection to the cluster.
        names: names of the topics. Missing ones are ignored, but not those that the brokers hide from this user.
        since_ms: read only records written at this instant or later, ms since the epoch; None = all.
        changelog: the topic, of these, that workers read with records of open transactions; empty = none.

    Raises:
        LapseError: a topic cannot be read.
    """
    there = connection.partitions()
    names = list(names)
    for one in names:
        if one not in there and (hidden := connection.hidden(one)):
            raise hidden
    topics = {one: there[one] for one in names if one in there}
    begins = _begins(connection, topics, since_ms)
    others = {one: count for one, count in topics.items() if one != changelog}
    journal = {one: count for one, count in topics.items() if one == changelog}
    records = chain(_records(connection, journal, since_ms, committed=False), _records(connection, others, since_ms))
    return Recording(topics, records, begins)


def _begins(connection: Connection, topics: Mapping[str, int], since_ms: int | None) -> dict[TP, int]:
    """Return from which offset each partition is read, whether or not its record was committed."""
    consumer, begins, ends = connection.consumer(), dict[TP, int](), dict[TP, int]()
    try:
        partitions = [TopicPartition(name, partition) for name, count in topics.items() for partition in range(count)]
        for one in partitions:
            tp = TP(one.topic, one.partition)
            begins[tp], ends[tp] = log_bounds(consumer, one)
        if since_ms is not None and partitions:
            instants = [TopicPartition(one.topic, one.partition, since_ms) for one in partitions]
            for found in offsets_at(consumer, instants):
                tp = TP(found.topic, found.partition)
                begins[tp] = found.offset if found.offset >= 0 else ends[tp]
    except KafkaException as error:
        raise ConnectionFailed(connection.bootstrap_servers, error) from error
    finally:
        consumer.close()
    return begins


def _records(
    connection: Connection, topics: Mapping[str, int], since_ms: int | None, *, committed: bool = True
) -> Iterator[Recorded]:
    for message in span(connection, topics, since_ms, committed=committed):
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


def defined(
    name: str, path: Path, config: Config, connection: Connection
) -> tuple[Definition, Config, Mapping[int, Serving]]:
    """Return a queue from the definitions topic, with the settings by which it was served.

    The topic has the latest version, and earlier ones until Kafka compacts it.

    Args:
        name: name of the queue.
        path: path of the `lapse.toml`.
        config: content of the `lapse.toml`.
        connection: connection to the cluster.

    Returns:
        The latest definition, the configuration with all defined entities, and how the queue was served, by version.

    Raises:
        ConfigError: the key of a user cannot be read.
        LapseError: the topic cannot be read, or does not define such a queue.
    """
    defining = topic.definitions(config.lapse.app_id)
    latest: dict[str, bytes] = {}
    definitions = [
        one.value for one in _all(read(connection, [defining]), defining) if note(latest, one.key, one.value) == name
    ]
    if None in definitions:  # earlier records defined another queue of that name
        definitions = definitions[len(definitions) - definitions[::-1].index(None) :]
    try:
        versions = [Definition.decode(name, value) for value in definitions]
        if name not in latest or versions[-1].kind != "queue":
            queues = (one.name for one in understood(latest).values() if one.kind == "queue")
            raise LapseError(
                f"{defining} defines no queue {name}{did_you_mean(name, queues)}; "
                "`lapse apply` defines what lapse.toml has"
            )
        whole = decide(path, config, latest).config
        beside = path.absolute().parent
        by_file = by_version(name, config, None, beside) if name in config.queue else {}  # before it was defined
        return versions[-1], whole, {**by_file, **by_version(name, whole, versions, beside)}
    except ValueError as error:
        raise LapseError(str(error)) from error


def read_arrivals_and_work(
    name: str, config: QueueConfig, connection: Connection, since_ms: int | None, until_ms: int | None
) -> tuple[Arrivals, RecordedWork]:
    """Return the recorded arrivals of a queue, and the recorded work of its consumers.

    Args:
        name: name of the queue.
        config: settings of the queue.
        connection: connection to its cluster.
        since_ms: beginning of the stretch, ms since the epoch; None = the first record.
        until_ms: end of the stretch, ms since the epoch; None = the last record.

    Raises:
        LapseError: the topics cannot be read, or have no message in that stretch.
    """
    there = connection.partitions()
    sources, events = underlying(name, config, there), topic.events(name)
    deliveries = [topic.deliveries(name), *topic.private_deliveries(name, there)]
    recording = read(connection, [*sources, *deliveries, events], since_ms)
    arrivals = recorded_arrivals(recording, sources, since_ms, until_ms)
    if not len(arrivals):
        raise LapseError(
            f"{name}: its underlying topics ({', '.join(sources) or 'none'}) hold no message of that stretch"
        )
    recorded = [event.decode(one.value) for one in _all(recording, events) if one.value is not None]
    handed_out = (record for one in deliveries for record in _all(recording, one))
    return arrivals, recorded_work(handed_out, recorded)


def _all(recording: Recording, name: str) -> Iterator[Any]:
    for partition in range(recording.partitions().get(name, 0)):
        yield from recording.log(name, partition)[:]


def _check_there(
    name: str, connection: Connection, there: Mapping[str, int], needed: Iterable[str], changelog: str
) -> None:
    """Check that the topics exist without which a queue cannot be replayed.

    Raises:
        LapseError: one is missing, or the brokers hide it from this user.
    """
    for one in needed:
        if one not in there:
            asks = "Did a worker of this lapse.toml, with its app_id, ever run here? " if one == changelog else ""
            raise connection.hidden(one) or LapseError(
                f"{name}: its topic {one} is missing, and what would be replayed with it. {asks}"
                "`lapse apply` creates a new one"
            )


def replay(
    name: str,
    config: Config,
    servings: Mapping[int, Serving],
    connection: Connection,
    since_ms: int | None,
    until_ms: int | None,
) -> list[Comparison]:
    """Replay the recorded steps of a queue's shards, and compare the events.

    Args:
        name: name of the queue.
        config: the configuration at that time.
        servings: how the queue was served, by the version of its definition.
        connection: connection to its cluster.
        since_ms: beginning of the stretch, ms since the epoch; None = as early as possible.
        until_ms: end of the stretch, ms since the epoch; None = the last record.

    Raises:
        LapseError: the topics cannot be read, or lack records.
    """
    there = connection.partitions()
    changelog = topic.changelog(config.lapse.app_id, name)
    own = [changelog, topic.commands(name), topic.deliveries(name), topic.events(name)]
    sources = {source for one in servings.values() for source in underlying(name, one.config, there)}
    named = {source for one in servings.values() for source in one.config.underlying(name)}
    _check_there(name, connection, there, own if sources else [*own, *sorted(named)], changelog)
    own += topic.private_deliveries(name, there)
    sources |= named  # hidden ones are reported
    recording = read(connection, [*own, *sorted(sources)], changelog=changelog)
    for forward in {one.forward for one in servings.values() if one.forward is not None}:
        recording.create(forward, there.get(forward, 1))
    found = []
    for partition in range(there[changelog]):
        journal = RecordedJournal(recording.log(changelog, partition)[:], since_ms, until_ms)
        recorded = [
            RecordedEvent(one.timestamp, event.decode(one.value))
            for one in recording.log(topic.events(name), partition)[:]
            if one.value is not None and (until_ms is None or one.timestamp <= until_ms)
        ]
        try:
            again = list(ReplayedShard(name, servings, partition, recording, journal).events())
        except NotReplayable as error:
            raise LapseError(f"{name}, partition {partition}: {error}") from error
        found.append(compare(partition, journal, recorded, again))
    return found


def show(found: list[Comparison], as_json: bool) -> None:
    """Print the comparisons, and exit with code 1 unless all events are the same."""
    if as_json:
        for one in found:
            for reported in one.events:
                click.echo(orjson.dumps(_event_facts(reported)))
            click.echo(orjson.dumps(dict(facts(one))))
    else:
        table = Table("partition", "from (UTC)", "epochs", "steps", "recorded", "replayed", "unjournaled", "the same")
        for one in found:
            counts = (one.epochs, one.steps, one.recorded, len(one.events), one.unjournaled)
            table.add_row(str(one.partition), shown(one.began_ms), *map(str, counts), "yes" if one.same else "no")
        print_table(table)
    for one in found:
        _print_differences(one.partition, "recorded, and did not come again", one.missing)
        _print_differences(one.partition, "came, and is not recorded", one.extra)
        if not one.in_order:
            click.echo(f"partition {one.partition}: the same events came in another order", err=True)
    if not all(one.same for one in found):
        raise click.exceptions.Exit(1)


def _print_differences(partition: int, what: str, some: Sequence[event.Event]) -> None:
    for reported in some[:_DIFFERENCES_SHOWN]:
        click.echo(f"partition {partition}, {what}: {orjson.dumps(_event_facts(reported)).decode()}", err=True)


def _event_facts(reported: event.Event) -> dict[str, object]:
    """Return an event for JSON, without the key, which a queue's events do not have."""
    named = {one.name: getattr(reported, one.name) for one in fields(reported) if one.name not in ("messages", "key")}
    return {**named, "messages": [_range(one) for one in reported.messages]}


def _range(one: BookmarkRange) -> str:
    name = f"{one.topic}:{one.partition}:{one.first}"
    return name if one.first == one.last else f"{name}-{one.last}"

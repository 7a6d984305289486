"""`lapse spark state`: the messages of a queue, or the records of a SOW topic, as they were at an instant (D7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import click
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lapse.protocol import topic
from lapse.tables import console
from lapse_client import Connection
from lapse_client.error import LapseError
from lapse_client.kafka.connection import entities
from lapse_client.reading.instant import shown
from lapse_spark import lapse_toml, quarantine, read
from lapse_spark.instant import as_of, expiration, queue_as_of
from lapse_spark.local_directory import check_replaceable
from lapse_spark.option import Cluster, cluster, print_json, working
from lapse_spark.option_type import INSTANT
from lapse_spark.report import Cell, Report

_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class _Found:
    """The state of an entity.

    Attributes:
        what: `messages` or `records`.
        rows: DataFrame with a row for each of them.
        order: columns to sort by.
        facts: converts a row to facts for JSON and tables.
        columns: number of facts that the table shows.
        missing: text that says what is missing; empty if nothing is.
    """

    what: str
    rows: DataFrame
    order: tuple[str, ...]
    facts: Callable[[Row], dict[str, Cell]]
    columns: int
    missing: str


def _absent(entity: str, app_id: str | None, topics: Mapping[str, int], ours: Connection) -> LapseError:
    """Return the error for an entity without a journal or compacted topic."""
    known = {*entities(topics, sow=False), *entities(topics, sow=True)}
    if entity not in known:
        return ours.unknown("queue or SOW topic", entity, known, topic.commands(entity))
    journal = topic.changelog(app_id or "<app_id>", entity)
    hidden = None if app_id is None else ours.hidden(journal)
    return hidden or LapseError(
        f"{entity}: there is no topic {journal}. Name the lapse.toml of its deployment with --config, "
        "or run `lapse apply`"
    )


@click.command()
@click.option("--entity", required=True, help="The queue or SOW topic.")
@click.option("--at", type=INSTANT, required=True, help="The instant: RFC 3339, or ms since the epoch.")
@click.option("--output", help="Directory for Parquet of all messages or records, instead of a list.")
@cluster
def state(*, cluster: Cluster, as_json: bool, entity: str, at: int, output: str | None) -> None:
    """Show the messages of a queue, or the records of a SOW topic, as they were at an instant.

    Exits with 1 if some may be missing.
    """
    if output is not None:
        check_replaceable(output, cluster.config)
    cluster.await_broker()
    ours = cluster.connection.of_lapse()
    topics = ours.partitions(topic.commands(entity))
    there = set(topics)
    app_id = None if cluster.file is None else lapse_toml.app_id(cluster.file)
    journal = None if topic.sow(entity) in there else queue_as_of.journal(entity, app_id, there)
    if journal is None and topic.sow(entity) not in there:
        raise _absent(entity, app_id, topics, ours)
    events_topics = [topic.events(entity)] if topic.events(entity) in there else []
    reading = [journal or topic.sow(entity), *events_topics]
    ours.check_allowed(reading, "Read")
    now_ms = cluster.now_ms(entity)
    as_of.check(at, now_ms)
    session = cluster.session("state")
    with cluster.reading(reading), working(f"Reading the state of {entity}"):
        if journal is not None and app_id is None:
            app_id = journal.removesuffix(topic.changelog("", entity))
        acts = _acts(ours, there, app_id, entity, at, cluster.file)
        having = (
            _records(session, cluster, entity, at, now_ms, acts)
            if journal is None
            else _messages(session, cluster, entity, journal, at, acts)
        )
        with having as found:
            most = None if as_json else _SHOWN
            rows = [] if output else _listed(found, most)
            count = found.rows.count() if output or len(rows) == most else len(rows)
            deletion = _deletion(session, cluster, entity, at) if events_topics else ""
            missing = " ".join(filter(None, (deletion, found.missing)))
            if output:
                found.rows.write.mode("overwrite").parquet(output)
    if as_json:
        facts = {"entity": entity, "at_ms": at, "count": count, "complete": not missing, "missing": missing}
        print_json(facts if output else {**facts, found.what: [found.facts(row) for row in rows]})
    else:
        _show(entity, at, count, found, rows, output)
        if missing:
            click.echo(f"Warning: {missing}", err=True)
    if missing:
        raise SystemExit(1)


def _deletion(session: SparkSession, cluster: Cluster, entity: str, at: int) -> str:
    """Return a text that says when the entity was deleted after the instant; empty if it never was."""
    records = read.records(session, cluster.connection, names=[topic.events(entity)], span=read.Span(start_ms=at))
    return as_of.deletion(records, at)


def _acts(ours: Connection, there: set[str], app_id: str | None, entity: str, at: int, file: Path | None) -> bool:
    try:
        return expiration.is_enforced(ours, there, app_id, entity, at, file)
    except LapseError as error:
        warning = f"{error}. Without it lifetimes are taken to count: nothing past its deadline is shown"
        click.echo(f"Warning: {warning}", err=True)
        return True


@contextmanager
def _records(
    session: SparkSession, cluster: Cluster, entity: str, at: int, now_ms: int, acts: bool
) -> Iterator[_Found]:
    """Yield the records of a SOW topic."""
    updates = quarantine.split(read.sow_updates(session, cluster.connection, entity))[0]
    updates.persist()
    try:
        missing = as_of.gaps(updates, at, now_ms).sentence
        records = as_of.records(updates, at, acts).withColumn("updated_at_ms", F.unix_millis("updated_at"))
        yield _Found("records", records, ("key",), _record, 4, missing)
    finally:
        updates.unpersist()


@contextmanager
def _messages(
    session: SparkSession, cluster: Cluster, entity: str, journal: str, at: int, acts: bool
) -> Iterator[_Found]:
    """Yield the messages of a queue."""
    # A partition of a journal must be read by one task. An open transaction of somebody else must hide nothing of it.
    whole = read.Span(options={"minPartitions": "1", "kafka.isolation.level": "read_uncommitted"})
    records = read.records(session, cluster.connection, names=[journal], span=whole)
    then = queue_as_of.messages(records, entity, at, acts)
    try:
        yield _Found("messages", then.messages, ("_shard", "_at"), _message, 7, then.sentence)
    finally:
        then.release()


def _listed(found: _Found, most: int | None) -> list[Row]:
    ordered = found.rows.orderBy(*found.order)
    return (ordered if most is None else ordered.limit(most)).collect()


def _record(row: Row) -> dict[str, Cell]:
    """Return the facts of a SOW record. Bytes that are not UTF-8 become U+FFFD."""
    return {
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "expires_at_ms": row["expires_at_ms"],
        "updated_at_ms": row["updated_at_ms"],
        "partition": row["partition"],
        "offset": row["offset"],
    }


def _message(row: Row) -> dict[str, Cell]:
    """Return the facts of a message, as a peek shows them."""
    columns = (
        "bookmark",
        "state",
        "delivery_count",
        "cancel_count",
        "subscription",
        "until_ms",
        "expires_at_ms",
    )
    return {column: row[column] for column in columns}


def _show(entity: str, at: int, count: int, found: _Found, rows: list[Row], output: str | None) -> None:
    if output:
        click.echo(f"{entity} at {shown(at)}: {count:,} {found.what} written to {output}")
        return
    page = Report(f"{entity} at {shown(at)}")
    facts = [dict(islice(found.facts(row).items(), found.columns)) for row in rows]
    names = [name.removesuffix("_ms") for name in facts[0]] if facts else []
    title = f"{count:,} {found.what}" + (f", the first {len(rows)}" if len(rows) < count else "") + "; times in UTC"
    page.table(names, [[_cell(name, value) for name, value in one.items()] for one in facts], title=title)
    page.show(console())


def _cell(name: str, value: Cell) -> Cell:
    """Return a fact as a table shows it: instants as people read them."""
    return shown(value) if name.endswith("_ms") and isinstance(value, int) else value


def _text(data: bytes | bytearray) -> str:
    return bytes(data).decode("utf-8", "replace")

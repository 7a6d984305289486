"""`lapse sow`: query, follow and delete records of SOW topics; create, alter and delete SOW topics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

import click
import orjson
from rich.table import Column, Table

from lapse.cli import cluster
from lapse.cli.confirmation import confirm
from lapse.cli.lazy_group import Lazy, LazyGroup
from lapse.cli.subscribed import print_subscriptions
from lapse.cli.unserved import delete_unserved, deletion_figures
from lapse.option_type import Number
from lapse.tables import print_table
from lapse_client.error import LapseError
from lapse_client.reading.count_text import count_text
from lapse_client.reading.instant import shown
from lapse_client.sow.record import SowRecord
from lapse_client.sow.sow_client import SowClient

_SERVERS = cluster.options
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
_FILTER = click.option("-f", "--filter", "expression", help="Only records for which this expression is true.")
_SELECT = click.option(
    "--select", multiple=True, metavar="PATH", help="Only this field, such as /id; -/id excludes it. May be repeated."
)

_STATES: Final = ("records", "scheduled", "dying")
"""What leaves with a deleted SOW topic."""

_LAZY: Final = {
    "create": Lazy("lapse.cli.define:create_sow", "Create the SOW topic NAME in a running deployment.", extra="worker"),
    "alter": Lazy(
        "lapse.cli.define:alter_sow", "Change settings of the SOW topic NAME; what is not named stays.", extra="worker"
    ),
}


@click.group(cls=LazyGroup, lazy=_LAZY)
def sow() -> None:
    """Query, follow and delete records; create, alter and delete SOW topics."""


@sow.command()
@click.argument("topic")
@click.argument("expression", required=False)
@click.option("--order-by", help="An expression, followed by ASC or DESC.")
@click.option("-n", "--top-n", type=click.IntRange(0), help="The greatest number of records.")
@click.option("--skip", type=click.IntRange(0), help="How many to leave out first.")
@click.option("-k", "--key", "keys", multiple=True, help="Only this key; may be repeated.")
@_SELECT
@_SERVERS
@_JSON
def query(
    topic: str,
    expression: str | None,
    order_by: str | None,
    top_n: int | None,
    skip: int | None,
    keys: tuple[str, ...],
    select: tuple[str, ...],
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Show the current records of TOPIC for which EXPRESSION is true, or all."""
    with _open(topic, bootstrap_servers, insists=False) as client:
        records = client.query(expression, order_by=order_by, top_n=top_n, skip=skip, keys=keys or None, select=select)
        if as_json:
            for record in records:
                click.echo(orjson.dumps(_facts(record)))
            return
        table = Table(
            "key", Column("value", overflow="fold"), "expires (UTC)", Column("bookmark", overflow="fold"), title=topic
        )
        for record in records:
            table.add_row(
                _text(record.key), _text(record.value), shown(record.expires_at_ms), str(record.bookmark or "")
            )
        print_table(table)


@sow.command()
@click.argument("topic")
@click.argument("expression", required=False)
@click.option("--from-now", is_flag=True, help="Only updates, without the current records.")
@click.option("--deltas", is_flag=True, help="Only changed fields of records that were shown before.")
@click.option("--timeout", type=Number(0), help="End after this many seconds without an update.")
@_SELECT
@_SERVERS
@click.option("--json", is_flag=True, expose_value=False, help="Changes nothing: the output is JSON in any case.")
def follow(
    topic: str,
    expression: str | None,
    from_now: bool,
    deltas: bool,
    timeout: float | None,
    select: tuple[str, ...],
    bootstrap_servers: str | None,
) -> None:
    """Print the current records of TOPIC, then updates and records that go out of focus, as JSON lines."""
    with _open(topic, bootstrap_servers) as client:
        ask = {
            (True, True): client.delta_subscribe,
            (True, False): client.subscribe,
            (False, True): client.sow_and_delta_subscribe,
            (False, False): client.sow_and_subscribe,
        }[from_now, deltas]
        with ask(expression, select=select) as updates, contextlib.suppress(KeyboardInterrupt):
            for update in updates.updates(timeout):
                facts = {"kind": update.kind, **_facts(update), "partition": update.partition}
                click.echo(orjson.dumps({**facts, "operation": update.operation, "reasons": update.reasons}))


@sow.command()
@click.argument("topic")
@_SERVERS
@_JSON
def subscriptions(topic: str, bootstrap_servers: str | None, as_json: bool) -> None:
    """Show who is subscribed to TOPIC, and since when."""
    with _open(topic, bootstrap_servers, insists=False) as client:
        print_subscriptions(topic, client.subscriptions(), as_json)


@sow.command()
@click.argument("topic")
@click.option("-k", "--key", "keys", multiple=True, help="The record with this key; may be repeated.")
@click.option("--data", multiple=True, help="The record with the key fields of this payload; may be repeated.")
@click.option(
    "--bookmark", "bookmarks", multiple=True, help="The record whose last update is at this bookmark; may be repeated."
)
@_FILTER
@_SERVERS
@_JSON
def delete(
    topic: str,
    keys: tuple[str, ...],
    data: tuple[str, ...],
    bookmarks: tuple[str, ...],
    expression: str | None,
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Delete records by key, by payload, by bookmark or by filter."""
    with _open(topic, bootstrap_servers) as client:
        removed = client.delete(keys=keys, data=data, filter=expression, bookmarks=bookmarks)
    click.echo(orjson.dumps({"removed": removed}) if as_json else f"{count_text(removed, 'record')} deleted.")


@sow.command()
@click.argument("topic")
@click.option("-n", "--top-n", type=click.IntRange(1), help="The greatest number of updates.")
@click.option("--skip", type=click.IntRange(0), default=0, help="How many to leave out first.")
@click.option("-f", "--filter", "expression", help="Only updates for whose payload this expression is true.")
@_SERVERS
@_JSON
def scheduled(
    topic: str, top_n: int | None, skip: int, expression: str | None, bootstrap_servers: str | None, as_json: bool
) -> None:
    """Show the updates of TOPIC whose instant has not come, the next ones first."""
    with _open(topic, bootstrap_servers, insists=False) as client:
        updates = client.scheduled(filter=expression, top_n=top_n, skip=skip)
    if as_json:
        for update in updates:
            click.echo(orjson.dumps(asdict(update)))
        return
    table = Table(
        "due (UTC)",
        Column("key", overflow="fold"),
        "change",
        "expires (UTC)",
        Column("bookmark", overflow="fold"),
        title=topic,
    )
    for update in updates:
        table.add_row(
            shown(update.enqueue_at_ms), update.key, update.change, shown(update.expires_at_ms), update.bookmark
        )
    print_table(table)


@sow.command()
@click.argument("topic")
@click.option(
    "--bookmark", "bookmarks", multiple=True, metavar="TOPIC:PARTITION:FIRST[-LAST]", help="This one; may be repeated."
)
@click.option(
    "-f", "--filter", "expression", help="Those for whose payload this expression is true; TRUE = all but deletes."
)
@_SERVERS
@_JSON
def withdraw(
    topic: str, bookmarks: tuple[str, ...], expression: str | None, bootstrap_servers: str | None, as_json: bool
) -> None:
    """Withdraw scheduled updates of TOPIC before they take effect; its records stay as they are."""
    with _open(topic, bootstrap_servers) as client:
        withdrawn = client.withdraw(filter=expression, bookmarks=bookmarks)
    click.echo(
        orjson.dumps({"withdrawn": withdrawn}) if as_json else f"{count_text(withdrawn, 'scheduled update')} withdrawn."
    )


@sow.command("delete-topic")
@click.argument("topic")
@click.option("--force", is_flag=True, help="Delete the topic with all records.")
@click.option("--yes", is_flag=True, help="Do not ask, with --force.")
@_SERVERS
@_JSON
def delete_topic(topic: str, force: bool, yes: bool, bootstrap_servers: str | None, as_json: bool) -> None:
    """Delete the SOW topic TOPIC, if it is empty.

    Its underlying topic, dead letters and events stay, unless it is temporary and they were created with it.
    A SOW topic that is defined, and that no worker can serve, is deleted with --force only.
    """
    counts: dict[str, int] = {}
    try:
        with _open(topic, bootstrap_servers) as client:
            if force and not yes:
                confirm(f"Delete {topic} with all its records?")
            counts = client.delete_topic(force=force)
    except click.ClickException as error:
        delete_unserved("sow", topic, force, yes, error)
    facts = {"deleted": topic, **deletion_figures(counts, _STATES)}
    click.echo(orjson.dumps(facts) if as_json else f"{topic} is deleted.")


@contextlib.contextmanager
def _open(topic: str, bootstrap_servers: str | None, *, insists: bool = True) -> Iterator[SowClient]:
    """Open a SOW topic. Commands that only read do not insist on a worker: `insists` is False."""
    try:
        with SowClient(topic, connection=cluster.connection(bootstrap_servers, insists=insists)) as client:
            yield client
    except (LapseError, ValueError) as error:
        raise click.ClickException(str(error)) from error


def _text(data: bytes | None) -> str:
    return "" if data is None else data.decode("utf-8", "replace")


def _facts(record: SowRecord) -> dict[str, object]:
    return {
        "key": None if record.key is None else _text(record.key),
        "value": None if record.value is None else _text(record.value),
        "bookmark": None if record.bookmark is None else str(record.bookmark),
        "expires_at_ms": record.expires_at_ms,
        "timestamp_ms": record.timestamp_ms,
    }

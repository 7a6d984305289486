"""`lapse queue`: receives, peeks, settles by bookmark, and creates, alters and deletes queues."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final, Literal
from uuid import uuid4

import click
import orjson
from rich.table import Column, Table
from rich.text import Text

from lapse.cli import cluster
from lapse.cli.confirmation import confirm
from lapse.cli.ending import interrupted_afterwards, treat_sigterm_as_ctrl_c
from lapse.cli.instant import When, at_ms
from lapse.cli.lazy_group import Lazy, LazyGroup
from lapse.cli.rewind_point import RewindPoint
from lapse.cli.settlement_results import print_results
from lapse.cli.subscribed import print_subscriptions
from lapse.cli.unserved import delete_unserved, deletion_figures
from lapse.option_type import Number
from lapse.protocol.answer import HELD_UP
from lapse.protocol.command_field import QUEUE_STATES
from lapse.tables import print_table
from lapse_client.delivery.delivery import Delivery
from lapse_client.error import AnswerTimeout, ConnectionFailed, LapseError
from lapse_client.kafka import time_check
from lapse_client.queue.queue import Queue
from lapse_client.queue.rewind import left_out_text
from lapse_client.reading.count_text import count_text
from lapse_client.reading.instant import shown
from lapse_client.subscriber.subscriber import QueueSubscriber

Command = Callable[..., Any]

_SERVERS = cluster.options
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
_FILTER = click.option("-f", "--filter", "expression", help="Only messages for which this expression is true.")


_STATES: Final = ("leased", "available", "delayed", "scheduled", "dying", "transferring", "unconfirmed", "held")
"""States of the messages that leave with a deleted queue."""

_INTAKE_S: Final = 10.0
"""How long to wait until the shards confirm that they deliver no more, in seconds."""

_LAZY: Final = {
    "create": Lazy("lapse.cli.define:create_queue", "Create the queue NAME in a running deployment.", extra="worker"),
    "alter": Lazy(
        "lapse.cli.define:alter_queue", "Change settings of the queue NAME; what is not named stays.", extra="worker"
    ),
    "partitions": Lazy(
        "lapse.cli.partitions:partitions",
        "Give the queue NAME shards for partitions that its topics have gained.",
        extra="worker",
    ),
}


@click.group(cls=LazyGroup, lazy=_LAZY)
def queue() -> None:
    """Receive and settle messages; inspect, create, alter and delete queues."""


@queue.command()
@click.argument("name")
@click.option(
    "--max-backlog",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="The greatest number of unsettled deliveries.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="Take this number of messages, and end.")
@click.option("--timeout", type=Number(0), help="End after this many seconds without a message.")
@click.option(
    "--settle",
    type=click.Choice(["acknowledge", "cancel", "expire"]),
    default="acknowledge",
    show_default=True,
    help="How to settle each message when it is printed.",
)
@_FILTER
@_SERVERS
@_JSON
def subscribe(
    name: str,
    max_backlog: int,
    count: int | None,
    timeout: float | None,
    settle: str,
    expression: str | None,
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Print messages as they are delivered, and acknowledge each, or settle it as `--settle` says.

    Ctrl-C or SIGTERM ends the command and returns the rest.
    """
    treat_sigterm_as_ctrl_c()
    with (
        _translate_errors(),
        QueueSubscriber(
            name, max_backlog, connection=cluster.connection(bootstrap_servers), filter=expression
        ) as subscriber,
    ):
        try:
            for number, delivery in enumerate(subscriber.messages(timeout), 1):
                _print_delivery(delivery, as_json)
                if number == count:  # else the settlement makes room for a delivery that counts and nobody sees
                    subscriber.subscription.end_intake(_INTAKE_S)
                with interrupted_afterwards():  # else acknowledgments that are being sent would be lost
                    getattr(delivery, settle)()
                if number == count:
                    break
        except KeyboardInterrupt:
            pass


@queue.command()
@click.argument("name")
@_SERVERS
@_JSON
def depth(name: str, bootstrap_servers: str | None, as_json: bool) -> None:
    """Count messages by state; show the age of the oldest, and whether deliveries are paused."""
    with _open(name, bootstrap_servers, insists=False) as client:
        counts = client.depth()
    if as_json:
        click.echo(orjson.dumps(counts))
        return
    table = Table(title=name)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for figure, value in counts.items():
        if not value and figure in (*HELD_UP, "paused"):
            continue
        shown_value = "yes" if figure == "paused" else "" if value is None else f"{value:,}"
        table.add_row(figure.replace("_", " "), shown_value)
    print_table(table)


@queue.command()
@click.argument("name")
@click.option(
    "-n", "--top-n", type=click.IntRange(1), default=20, show_default=True, help="The greatest number of messages."
)
@click.option("--skip", type=click.IntRange(0), default=0, help="How many to leave out first.")
@click.option("--state", type=click.Choice(QUEUE_STATES), default=None, help="Only messages in this state.")
@_FILTER
@_SERVERS
@_JSON
def peek(
    name: str,
    top_n: int,
    skip: int,
    state: str | None,
    expression: str | None,
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Show messages with state, deadline, counts and what they wait for; takes no lease."""
    with _open(name, bootstrap_servers, insists=False) as client:
        messages = client.peek(filter=expression, top_n=top_n, skip=skip, state=state or "")
    if as_json:
        for message in messages:
            click.echo(orjson.dumps(asdict(message)))
        return
    table = Table(
        Column("bookmark", overflow="fold"),
        "state",
        "since (UTC)",
        "until (UTC)",
        "by",
        "expires (UTC)",
        "deliveries",
        "cancels",
        Column("waits for", overflow="fold"),
        title=name,
    )
    for one in messages:
        table.add_row(
            one.bookmark,
            one.state,
            shown(one.since_ms),
            shown(one.until_ms),
            one.subscription,
            shown(one.expires_at_ms),
            str(one.delivery_count),
            str(one.cancel_count),
            # Text, not markup: it may contain the broker's text.
            Text(one.waits_for),
        )
    print_table(table)


@queue.command()
@click.argument("name")
@_SERVERS
@_JSON
def subscriptions(name: str, bootstrap_servers: str | None, as_json: bool) -> None:
    """Show who is subscribed, since when, and how many messages each holds."""
    with _open(name, bootstrap_servers, insists=False) as client:
        print_subscriptions(name, client.subscriptions(), as_json)


def _settling(how: str, name: str, text: str) -> None:
    """Add the subcommand for a settle action."""

    def settle(
        name: str,
        bookmarks: tuple[str, ...],
        expression: str | None,
        bootstrap_servers: str | None,
        as_json: bool,
        delay_ms: int | None = None,
        fault: str = "",
    ) -> None:
        if bool(bookmarks) is (expression is not None):
            raise click.UsageError("name either bookmarks or --filter")
        with _open(name, bootstrap_servers) as client:
            results = client.settle(how, bookmarks, filter=expression, delay_ms=delay_ms, fault=fault)  # type: ignore[arg-type]
            print_results(client, results, as_json)

    settle.__doc__ = text
    command: Command = _FILTER(_SERVERS(_JSON(settle)))
    if how == "cancel":
        command = click.option(
            "--delay-ms",
            type=click.IntRange(0),
            help="How long the messages wait before their next delivery, in ms; by default as the queue's retry says.",
        )(command)
    if how == "expire":
        command = click.option(
            "--fault", default="", help="What is wrong with them; their dead letters have this text."
        )(command)
    command = click.argument("bookmarks", nargs=-1, metavar="[TOPIC:PARTITION:FIRST[-LAST]]...")(command)
    queue.command(name)(click.argument("name")(command))


_settling("acknowledge", "ack", "Acknowledge messages: they are done, and leave the queue.")
_settling("cancel", "cancel", "Return leased messages to the queue, or withdraw scheduled ones.")
_settling("expire", "expire", "Expire messages now, so that they become dead letters.")


@queue.command()
@click.argument("name")
@_SERVERS
@_JSON
def pause(name: str, bootstrap_servers: str | None, as_json: bool) -> None:
    """Stop deliveries until `resume`."""
    with _open(name, bootstrap_servers) as client:
        client.pause()
    click.echo(orjson.dumps({"queue": name, "paused": True}) if as_json else f"{name}: deliveries are paused.")


@queue.command()
@click.argument("name")
@_SERVERS
@_JSON
def resume(name: str, bootstrap_servers: str | None, as_json: bool) -> None:
    """Resume deliveries."""
    with _open(name, bootstrap_servers) as client:
        client.resume()
    click.echo(orjson.dumps({"queue": name, "paused": False}) if as_json else f"{name}: deliveries go on.")


@queue.command()
@click.argument("name")
@click.option("--leased", is_flag=True, help="Remove leased messages, too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_FILTER
@_SERVERS
@_JSON
def purge(
    name: str, leased: bool, yes: bool, expression: str | None, bootstrap_servers: str | None, as_json: bool
) -> None:
    """Remove all messages, or those that match."""
    with _open(name, bootstrap_servers) as client:
        if not yes:
            confirm(f"Remove messages from {name} ({client.depth().get('depth', 0):,} in it)?")
        counts = client.purge(filter=expression, leased=leased)
    if as_json:
        click.echo(orjson.dumps(counts))
        return
    states = ", ".join(f"{counts[state]:,} {state}" for state in QUEUE_STATES if counts.get(state))
    click.echo(f"{count_text(counts.get('removed', 0), 'message')} removed{f' ({states})' if states else ''}.")


@queue.command()
@click.argument("name")
@click.option(
    "--to",
    required=True,
    type=RewindPoint(),
    metavar="beginning|INSTANT|BOOKMARK",
    help="From where on: the beginning of the log, an instant (2026-01-31T12:00:00, ms since the epoch, or 2h for two "
    "hours ago), or a message.",
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option(
    "--lifetimes",
    type=click.Choice(["new", "kept"]),
    default="new",
    show_default=True,
    help="new: relative lifetimes count from now; kept: deadlines stay as they were.",
)
@click.option("--handed-over", is_flag=True, help="Also bring back messages that were handed over or forwarded.")
@click.option("--id", "command_id", default="", help="The id of this rewind; with the same id it is resumed.")
@_FILTER
@_SERVERS
@_JSON
def rewind(
    name: str,
    to: str | When,
    dry_run: bool,
    lifetimes: Literal["new", "kept"],
    handed_over: bool,
    command_id: str,
    expression: str | None,
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Bring messages back that have left the queue NAME, as far as Kafka still has them.

    Messages in the queue stay as they are. The dry run says how many would come back.
    """
    command_id = command_id or uuid4().hex
    with _translate_errors():
        connection = cluster.connection(bootstrap_servers)
    with _open(name, bootstrap_servers) as client:

        def now_ms() -> int:
            return time_check.now_ms(connection, name, lambda why: click.echo(f"Warning: {why}", err=True))

        try:
            counts = client.rewind(
                to if isinstance(to, str) else at_ms(to, now_ms),
                filter=expression,
                lifetimes=lifetimes,
                handed_over=handed_over,
                dry_run=dry_run,
                command_id=command_id,
            )
        except AnswerTimeout as error:
            raise click.ClickException(f"{error}. It goes on; look again with --id {command_id}") from error
        except ConnectionFailed as error:
            raise click.ClickException(f"{error}. Look again with --id {command_id}") from error
    if as_json:
        click.echo(orjson.dumps(counts))
        return
    stay, would = left_out_text(counts), "would come back" if dry_run else "came back"
    back = count_text(counts.get("rewound", 0), "message")
    click.echo(f"{back} {would}{f'; left out: {stay}' if stay else ''}.")


@queue.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete the queue with all messages, leased or not.")
@click.option("--yes", is_flag=True, help="Do not ask, with --force.")
@_SERVERS
@_JSON
def delete(name: str, force: bool, yes: bool, bootstrap_servers: str | None, as_json: bool) -> None:
    """Delete the queue NAME, if it is empty.

    Its underlying topics, dead letters and events stay, unless it is temporary and they were created with it.
    A queue that is defined, and that no worker can serve, is deleted with --force only.
    """
    counts: dict[str, int] = {}
    try:
        with _open(name, bootstrap_servers) as client:
            if force and not yes:
                there = client.depth()
                messages = sum(there.get(state, 0) for state in ("depth", "scheduled", "held"))
                confirm(f"Delete {name} with {count_text(messages, 'message')} in it?")
            counts = client.delete(force=force)
    except click.ClickException as error:
        delete_unserved("queue", name, force, yes, error)
    facts = {"deleted": name, **deletion_figures(counts, _STATES)}
    click.echo(orjson.dumps(facts) if as_json else f"{name} is deleted.")


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn the client's errors into the command's."""
    try:
        yield
    except (LapseError, ValueError) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _open(name: str, bootstrap_servers: str | None, *, insists: bool = True) -> Iterator[Queue]:
    """Yield the client of a queue. Commands that only read do not insist on a worker."""
    with _translate_errors(), Queue(name, connection=cluster.connection(bootstrap_servers, insists=insists)) as client:
        yield client


def _print_delivery(delivery: Delivery, as_json: bool) -> None:
    value = None if delivery.value is None else delivery.value.decode("utf-8", "replace")
    if not as_json:
        click.echo("" if value is None else value)
        return
    facts = {
        "bookmark": str(delivery.bookmark),
        "key": None if delivery.key is None else delivery.key.decode("utf-8", "replace"),
        "value": value,
        "headers": [
            (name, None if text is None else text.decode("utf-8", "replace")) for name, text in delivery.headers
        ],
        "delivery_count": delivery.delivery_count,
        "lease_until_ms": delivery.lease_until_ms,
        "expires_at_ms": delivery.expires_at_ms,
        "barrier": delivery.is_barrier,
    }
    click.echo(orjson.dumps(facts))

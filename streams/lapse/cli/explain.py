"""`lapse explain`: shows the life of one message, from its arrival to its end (D6)."""

from __future__ import annotations

import sys
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from lapse.cli import cluster
from lapse.core.lifetime import NO_TIMESTAMP
from lapse.protocol.bookmark import Bookmark
from lapse.tables import print_table
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.reading.count_text import count_text
from lapse_client.reading.history import History, history
from lapse_client.reading.instant import shown


@click.command()
@click.argument("bookmark", metavar="TOPIC:PARTITION:OFFSET")
@click.option("-e", "--entity", help="Only what this queue or SOW topic knows; by default all are asked.")
@cluster.options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
def explain(bookmark: str, entity: str | None, bootstrap_servers: str | None, as_json: bool) -> None:
    """Show what happened to one message, from arrival to end.

    If it was forwarded, redriven or handed over, the lives of those records are shown as well.
    """
    try:
        wanted = Bookmark.parse(bookmark)  # first: a typing error needs no broker
        connection = cluster.connection(bootstrap_servers)
        found = _look(wanted, entity, connection, quiet=as_json or not sys.stderr.isatty())
    except (LapseError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        for moment in found.moments:
            click.echo(
                orjson.dumps(
                    {
                        "at_ms": moment.at_ms,
                        "entity": moment.entity,
                        "what": moment.what,
                        **moment.facts,
                        "shown_by": str(moment.shown_by),
                        "message": str(moment.message),
                    }
                )
            )
    else:
        _show(found)
    if found.silent:
        lacking = [one for queue in found.silent for one in connection.lacking(queue)]
        click.echo(f"Warning: {_unanswered(found.silent, lacking)}", err=True)
    if found.hidden:
        click.echo(
            f"Warning: the brokers do not let this user see {', '.join(found.hidden)}, if they are there, so something "
            "may be missing here. Have Read on them granted (docs/operations.md, Rights)",
            err=True,
        )
    if not found.moments:
        raise click.exceptions.Exit(1)


def _unanswered(queues: list[str], lacking: list[str]) -> str:
    """Return the text on queues that did not answer, some of them because topics are missing."""
    mend = "Start a worker (`lapse worker`)"
    if lacking:
        mend = f"Missing: {', '.join(lacking)}. Run `lapse apply`, which creates what is missing"
    return (
        f"no answer from {', '.join(queues)}. If the message waits for something there, such as a barrier or its dead "
        f"letter, that is not shown. {mend}, and ask again"
    )


def _look(bookmark: Bookmark, entity: str | None, connection: Connection, quiet: bool) -> History:
    """Search for the life of a message, with a progress bar on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(f"reading {name}", total=total)
            bars.update(tasks[name], completed=done, total=total)

        return history(bookmark, entity=entity, connection=connection, watcher=watch)


def _show(found: History) -> None:
    size = "no value" if found.size is None else count_text(found.size, "byte")
    title = f"{found.bookmark} ({found.missing or size})"
    if not found.moments:
        click.echo(f"{title}: nothing is known about it.")
        return
    chain = len({moment.message for moment in found.moments}) > 1
    titles = ["when (UTC)", "after", "entity", "what", *(["message"] if chain else [])]
    table = Table(*titles, Column("facts", overflow="fold"), title=title)
    began_ms = next((moment.at_ms for moment in found.moments if moment.at_ms != NO_TIMESTAMP), 0)
    for moment in found.moments:
        is_known = moment.at_ms != NO_TIMESTAMP
        table.add_row(
            shown(moment.at_ms) if is_known else "no timestamp",
            f"{(moment.at_ms - began_ms) / 1000:,.3f} s" if is_known else "",
            moment.entity,
            moment.what.replace("_", " "),
            *([str(moment.message)] if chain else []),
            # Text, not markup: facts come from publishers.
            Text("\n".join(f"{_title(name, value)}: {_fact(name, value)}" for name, value in moment.facts.items())),
        )
    print_table(table)


def _title(name: str, value: Any) -> str:
    known = name.removesuffix("_ms") + " (UTC)" if _is_instant(name, value) else name
    return known.replace("_", " ")


def _is_instant(name: str, value: Any) -> bool:
    return name.endswith("_ms") and isinstance(value, int)


def _fact(name: str, value: Any) -> str:
    if _is_instant(name, value):
        return shown(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

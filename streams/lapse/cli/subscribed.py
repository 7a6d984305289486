"""Prints the open subscriptions of a queue or SOW topic (Q15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
import orjson
from rich.table import Column, Table
from rich.text import Text

from lapse.protocol.answer import OpenSubscription
from lapse.tables import print_table
from lapse_client.reading.instant import shown


def print_subscriptions(entity: str, subscriptions: Sequence[OpenSubscription], as_json: bool) -> None:
    """Print open subscriptions: as JSON, one object a line, or as a table."""
    if as_json:
        for one in subscriptions:
            click.echo(orjson.dumps(asdict(one)))
        return
    hangs = any(one.hangs_since_ms for one in subscriptions)
    table = Table(
        Column("subscription", overflow="fold"),
        Column("client", overflow="fold"),
        "since (UTC)",
        "last heard (UTC)",
        Column("holds", justify="right"),
        Column("backlog", justify="right"),
        *(["hangs since (UTC)"] if hangs else []),
        Column("filter", overflow="fold"),
        title=entity,
    )
    for one in subscriptions:
        # Text, so that rich reads no markup in the names that clients chose.
        table.add_row(
            Text(one.subscription),
            Text(one.client),
            shown(one.since_ms),
            shown(one.heard_ms),
            f"{one.outstanding:,}",
            f"{one.max_backlog:,}",
            *([shown(one.hangs_since_ms) if one.hangs_since_ms else ""] if hangs else []),
            Text(one.filter),
        )
    print_table(table)

"""`lapse spark state`: the records of a SOW topic as they were at an instant (D7)."""

from __future__ import annotations

import click
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from rich.console import Console

from lapse.protocol import topic
from lapse_client.instant import shown
from lapse_spark import as_of, quarantine, read
from lapse_spark.option import INSTANT, Cluster, cluster, print_json, working
from lapse_spark.report import Cell, Report

_SHOWN = 50


@click.command()
@click.option("--entity", required=True, help="The SOW topic.")
@click.option("--at", type=INSTANT, required=True, help="The instant: RFC 3339, or ms since the epoch.")
@click.option("--output", help="Directory for Parquet of all records with all their bytes, instead of a list.")
@cluster
def state(*, cluster: Cluster, as_json: bool, entity: str, at: int, output: str | None) -> None:
    """Show the records of a SOW topic as they were at an instant; exits with 1 where some may be missing."""
    session = cluster.session("state")
    with working(f"Reading the state of {entity}"):
        updates = quarantine.split(read.sow_updates(session, cluster.connection, entity))[0]
        try:
            with read.existing([topic.sow(entity)]):
                # Spark asks for the topic when it plans an action: here, so that no worker is asked about another name.
                updates.persist().head(1)
        except ValueError as error:
            raise as_of.unknown(entity) from error
        try:
            now_ms = cluster.now_ms(entity)
            as_of.check(at, now_ms)
            found, gaps = as_of.records(updates, at), as_of.gaps(updates, at, now_ms)
            count = found.count()
            if output:
                found.write.mode("overwrite").parquet(output)
            rows = [] if output else _listed(found, None if as_json else _SHOWN)
        finally:
            updates.unpersist()
    if as_json:
        told = {"entity": entity, "at_ms": at, "count": count, "complete": gaps.complete, "missing": gaps.sentence}
        print_json(told if output else {**told, "records": [_facts(row) for row in rows]})
    else:
        _show(entity, at, count, rows, output)
        if not gaps.complete:
            click.echo(f"Warning: {gaps.sentence}", err=True)
    if not gaps.complete:
        raise SystemExit(1)


def _listed(found: DataFrame, most: int | None) -> list[Row]:
    ordered = found.orderBy("key").withColumn("updated_at_ms", F.unix_millis("updated_at"))
    return (ordered if most is None else ordered.limit(most)).collect()


def _facts(row: Row) -> dict[str, Cell]:
    """A record for programs and tables; what is not UTF-8 in it becomes U+FFFD."""
    return {
        "key": _text(row["key"]),
        "value": _text(row["value"]),
        "expires_at_ms": row["expires_at_ms"],
        "updated_at_ms": row["updated_at_ms"],
        "partition": row["partition"],
        "offset": row["offset"],
    }


def _show(entity: str, at: int, count: int, rows: list[Row], output: str | None) -> None:
    if output:
        click.echo(f"{entity} at {shown(at)} (UTC): {count:,} records written to {output}")
        return
    page = Report(f"{entity} at {shown(at)} (UTC)")
    cells = [list(_facts(row).values())[:4] for row in rows]
    title = f"{count:,} records" + (f", the first {len(rows)}" if len(rows) < count else "")
    page.table(("key", "value", "expires_at_ms", "updated_at_ms"), cells, title=title)
    page.show(Console())


def _text(data: bytes | bytearray) -> str:
    return bytes(data).decode("utf-8", "replace")

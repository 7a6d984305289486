"""The commands that only read: the lives of messages, and the report on the monitor's counts."""

from __future__ import annotations

import re
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession

from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from lapse.tables import console
from lapse_spark import ledger as ledger_job
from lapse_spark import lifetime, quarantine, read
from lapse_spark import lives as lives_job
from lapse_spark.account import account
from lapse_spark.local_directory import check_place, check_replaceable, check_written
from lapse_spark.monitoring import overview
from lapse_spark.option import Cluster, cluster, event_schemas, plain_faults, print_json, working
from lapse_spark.option_type import DURATION
from lapse_spark.records import delivery
from lapse_spark.report import Report
from lapse_spark.session import session


@click.command()
@click.option("--entity", required=True, help="The queue or SOW topic.")
@click.option("--bookmark", default="", help="Show everything that happened to this message.")
@click.option("--output", help="Directory for Parquet with one row per message.")
@click.option("--lifetimes", is_flag=True, help="Compute which lifetime would have been enough; needs --topics.")
@click.option("--at", type=DURATION, multiple=True, help="With --lifetimes: a lifetime to try; may be repeated.")
@click.option("--topics", default="", metavar="NAME,…", help="Its underlying topics: they tell when messages arrived.")
@event_schemas
@cluster
def lives(
    *,
    cluster: Cluster,
    as_json: bool,
    entity: str,
    bookmark: str,
    output: str | None,
    lifetimes: bool,
    at: tuple[int, ...],
    topics: str,
    written_with: tuple[Path, ...],
) -> None:
    """Show the life of one message, write those of all, or compute which lifetime would have been enough."""
    if bool(bookmark) + (output is not None) + lifetimes != 1:
        raise ValueError("give one of --bookmark for one message, --output for all, and --lifetimes")
    underlying = [name.strip() for name in topics.split(",") if name.strip()]
    if lifetimes and not underlying:
        raise ValueError("--lifetimes needs --topics: only they tell when a message arrived")
    asked = Bookmark.parse(bookmark) if bookmark else None
    schemas = [file.read_text("utf-8") for file in written_with]
    if output is not None:
        check_replaceable(output, cluster.config)
    cluster.await_topics(underlying, entity)
    session = cluster.session("lives")
    good, _ = quarantine.split(read.events(session, cluster.connection, [entity], written_with=schemas))
    reading = [topic.events(entity), *underlying]
    with read.name_missing_topics(reading), cluster.reading(reading), working("Reading the events"):
        if asked is not None:
            _print_life(lives_job.timeline(good, asked), f"{entity}: {bookmark}", as_json)
            return
        lives = lives_job.lives(
            good, _arrivals(session, cluster, entity, underlying), _read_deliveries(session, cluster, entity)
        )
        if output:
            lives.write.mode("overwrite").parquet(output)
            return
        lives = lives.persist()
        try:
            _print_lifetimes(lives, at, entity, as_json)
        finally:
            lives.unpersist()


def _arrivals(spark: SparkSession, cluster: Cluster, entity: str, underlying: list[str]) -> DataFrame | None:
    if not underlying:
        return None
    raw = read.records(spark, cluster.connection, names=underlying, span=read.Span(fail_on_data_loss=False))
    return account.published_messages(raw, entity)


def _read_deliveries(spark: SparkSession, cluster: Cluster, entity: str) -> DataFrame:
    """Return the deliveries. They are read by pattern, because a missing deliveries topic is no error."""
    pattern = re.escape(topic.deliveries(entity))
    raw = read.records(spark, cluster.connection, pattern=pattern, span=read.Span(fail_on_data_loss=False))
    return quarantine.split(delivery.parse(raw))[0]


def _print_life(timeline: DataFrame, title: str, as_json: bool) -> None:
    rows = [row.asDict() for row in timeline.collect()]
    if as_json:
        print_json(rows)
        return
    page = Report(title)
    shown = ("at_ms", "event", "subscription", "reasons", "delivery_count", "detail")
    cells = [[row[name] for name in shown] for row in rows]
    page.table(shown, [[str(cell[0]), *cell[1:]] for cell in cells], title=f"{len(rows)} events")
    page.show(console())


def _print_lifetimes(lives: DataFrame, at: tuple[int, ...], entity: str, as_json: bool) -> None:
    frames = {
        "enough": ("How long messages took to be handled, ms", lives_job.handling_times(lives)),
        "spent": ("How messages spent their time, ms", lives_job.times_spent(lives)),
        "what_if": ("What if", lifetime.what_if(lifetime.needed_lifetimes(lives), at)),
    }
    rows = {name: [row.asDict() for row in frame.collect()] for name, (_, frame) in frames.items()}
    sentences = [
        lifetime.sentence(row["entity"], row["lifetime_ms"], row["instead_of_ms"], row["expired"], row["share"])
        for row in rows["what_if"]
    ]
    if as_json:
        print_json({**rows, "sentences": sentences})
        return
    page = Report(f"Lifetimes of {entity}")
    for name, (title, frame) in frames.items():
        if rows[name]:
            page.table(frame.columns, [list(row.values()) for row in rows[name]], title=title)
    page.show(console())
    for sentence in sentences:
        click.echo(sentence)


@click.command()
@click.argument("path")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="The HTML file to write.")
@click.option(
    "--ledger",
    "ledgers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A file with the output of lapse spark ledger --json, to be shown as well; may be repeated.",
)
@click.option("--master", help="Spark's master; by default the configured one, or else all cores of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def report(path: str, output: Path | None, ledgers: tuple[Path, ...], master: str | None, as_json: bool) -> None:
    """Show what the monitor has counted in the directory PATH."""
    with plain_faults(), working("Reading"):
        check_written(path)
        if output is not None:
            check_place(output.parent, str(output))
        found = [_read_ledger(file) for file in ledgers]
        page = overview.build(session("lapse report", master=master), path, found)
        if output is not None:
            page.write(output)
    if as_json:
        print_json(page.as_json())
    elif output is None:
        page.show(console())
    else:
        click.echo(f"written: {output}")


def _read_ledger(file: Path) -> ledger_job.Ledger:
    """Read a ledger that `lapse spark ledger --json` has printed to a file.

    Raises:
        ValueError: the file has no ledger.
    """
    try:
        return ledger_job.Ledger.from_json(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"--ledger {file}: {error}") from error

"""The commands that only ask: the ledger, the lives of messages, the report on what the monitor has counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from lapse_spark import account, overview, quarantine, read, statement
from lapse_spark import ledger as ledger_job
from lapse_spark import lives as lives_job
from lapse_spark.option import INSTANT, Cluster, cluster, plain_faults, print_json, working
from lapse_spark.report import Report
from lapse_spark.session import session


def event_schemas(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that reads events the option for schemas of other versions; it gets them as `written_with`."""
    return click.option(
        "--event-schema",
        "written_with",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        help="event.avsc of another version of lapse, whose workers have written events, too; may be repeated.",
    )(command)


@click.command()
@click.option("--queue", required=True, help="The queue.")
@click.option("--topics", required=True, metavar="NAME,…", help="Its underlying topics, all of them.")
@click.option("--dead-letter-topic", multiple=True, help="Where its letters are, besides dlq.<queue>; may be repeated.")
@click.option("--start", multiple=True, metavar="BOOKMARK", help="First message of a partition; may be repeated.")
@click.option("--since", type=INSTANT, help="Only messages that arrived at this instant or later.")
@click.option("--until", type=INSTANT, help="Only fates decided before this instant; for a queue at work.")
@click.option("--expected-depth", type=int, help="Messages in all states as the queue says, to be compared.")
@click.option("--strict", is_flag=True, help="Records that cannot be read spoil the balance.")
@click.option("--limit", default=ledger_job.SHOWN, show_default=True, help="How many differences are listed.")
@click.option("--output", help="Directory for Parquet of all differences and of the quarantine.")
@event_schemas
@cluster
def ledger(
    *,
    cluster: Cluster,
    as_json: bool,
    queue: str,
    topics: str,
    dead_letter_topic: tuple[str, ...],
    start: tuple[str, ...],
    since: int | None,
    until: int | None,
    expected_depth: int | None,
    strict: bool,
    limit: int,
    output: str | None,
    written_with: tuple[Path, ...],
) -> None:
    """Reckon what became of every message; exits with 1 where it does not add up."""
    with working(f"Reckoning the ledger of {queue}"):
        found = ledger_job.run(
            cluster.session("ledger"),
            cluster.connection,
            queue,
            [name.strip() for name in topics.split(",") if name.strip()],
            dead_letter_topics=dead_letter_topic,
            start=[Bookmark.parse(text) for text in start],
            since_ms=since,
            until_ms=until,
            expected_depth=expected_depth,
            strict=strict,
            shown=limit,
            output=output,
            written_with=[file.read_text("utf-8") for file in written_with],
        )
    if as_json:
        print_json(found.as_json())
    else:
        statement.show(found, Console())
    if not found.balanced:
        raise SystemExit(1)


@click.command()
@click.option("--entity", required=True, help="The queue or SOW topic.")
@click.option("--bookmark", default="", help="Everything that happened to this message.")
@click.option("--output", help="Directory for Parquet with one row per message.")
@click.option("--lifetimes", is_flag=True, help="What lifetime would have been enough; needs --topics.")
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
    topics: str,
    written_with: tuple[Path, ...],
) -> None:
    """Tell the life of one message, write those of all, or say what lifetime would have been enough."""
    if bool(bookmark) + bool(output) + lifetimes != 1:
        raise ValueError("give one of --bookmark for one message, --output for all, and --lifetimes")
    if lifetimes and not topics:
        raise ValueError("--lifetimes needs --topics: only they tell when a message arrived")
    session = cluster.session("lives")
    schemas = [file.read_text("utf-8") for file in written_with]
    good, _ = quarantine.split(read.events(session, cluster.connection, [entity], written_with=schemas))
    underlying = [name.strip() for name in topics.split(",") if name.strip()]
    messages = None
    if underlying:
        raw = read.records(session, cluster.connection, names=underlying, span=read.Span(fail_on_data_loss=False))
        messages = account.published(raw, entity)
    with read.existing([topic.events(entity), *underlying]):
        if output:
            lives_job.lives(good, messages).write.mode("overwrite").parquet(output)
            return
        told = lives_job.enough(lives_job.lives(good, messages)) if lifetimes else None
        found = lives_job.timeline(good, Bookmark.parse(bookmark)) if told is None else told
        rows = [row.asDict() for row in found.collect()]
    if as_json:
        print_json(rows)
        return
    if told is not None:
        page = Report(f"{entity}: how long messages took to be handled")
        page.table(told.columns, [[row[name] for name in told.columns] for row in rows], title="Lifetimes, ms")
        page.show(Console())
        return
    page = Report(f"{entity}: {bookmark}")
    shown = ("at_ms", "event", "subscription", "reasons", "delivery_count", "detail")
    cells = [[row[name] for name in shown] for row in rows]
    page.table(shown, [[str(cell[0]), *cell[1:]] for cell in cells], title=f"{len(rows)} events")
    page.show(Console())


@click.command()
@click.argument("path")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="The HTML file to write.")
@click.option(
    "--ledger",
    "ledgers",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A file with what lapse spark ledger --json has printed, to be shown, too; may be repeated.",
)
@click.option("--master", help="Spark's master; as configured, else all cores of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def report(path: str, output: Path | None, ledgers: tuple[Path, ...], master: str | None, as_json: bool) -> None:
    """Show what the monitor has counted in the directory PATH."""
    with plain_faults(), working("Reading"):
        found = [ledger_job.Ledger.from_json(file.read_bytes()) for file in ledgers]
        page = overview.build(session("lapse report", master=master), path, found)
    if output is not None:
        page.write(output)
    if as_json:
        print_json(page.as_json())
    elif output is None:
        page.show(Console())
    else:
        click.echo(f"written: {output}")

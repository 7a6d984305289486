"""`lapse spark …`: the jobs as commands; also `python -m lapse_spark <job>`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import click

from lapse.core.reason import Reason
from lapse.option_type import check_span, not_empty
from lapse.protocol.redrive import MAX_REDRIVES, target_fault
from lapse.tables import console
from lapse_client.letters.redriven import TOPIC as REDRIVEN
from lapse_spark import local_rows, read, schema
from lapse_spark.account.ledger_command import ledger
from lapse_spark.instant import inquiry
from lapse_spark.instant.state import state
from lapse_spark.letters import archive as archive_job
from lapse_spark.letters import audit, delta
from lapse_spark.letters.redrive import Choice, Target, condition
from lapse_spark.local_directory import check_writable, check_written
from lapse_spark.monitoring import monitor as monitor_job
from lapse_spark.monitoring import upkeep
from lapse_spark.option import PATTERN_HELP, Cluster, cluster, kept_as, print_json, stream_options, working
from lapse_spark.option_type import HOURS, INSTANT, WINDOW
from lapse_spark.report import Report
from lapse_spark.stream.stream import Standing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_WHOLE: Final = 300
"""The most characters of a summary in the list of commands."""


class _Jobs(click.Group):
    """Lists its commands with whole sentences; click cuts them at the width of the terminal."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in self.list_commands(ctx)]
            )


@click.group(cls=_Jobs)
def spark() -> None:
    """Count, archive, redrive and audit dead letters with Apache Spark."""


spark.add_command(ledger)
spark.add_command(inquiry.lives)
spark.add_command(inquiry.report)
spark.add_command(state)
spark.add_command(upkeep.alerts)
spark.add_command(upkeep.compact)


@spark.command()
@click.argument("path")
@click.option("--window", type=WINDOW, default=monitor_job.WINDOW, show_default=True, help="The length of a window.")
@click.option(
    "--horizon-hours",
    type=HOURS,
    default=24.0,
    show_default=True,
    help="How far back to look for copies of a letter, in hours.",
)
@stream_options
@cluster
def monitor(
    *,
    cluster: Cluster,
    as_json: bool,
    path: str,
    window: str,
    horizon_hours: float,
    pattern: str,
    every: str | None,
    max_records: int | None,
    strict: bool,
) -> None:
    """Count dead letters by entity, reasons and window into the directory PATH, each letter once."""
    check_writable(path, cluster.config)
    pattern = cluster.await_letters(pattern, later=every is not None)
    session = cluster.session("monitor")
    with working("Counting dead letters") as watch:
        standing = monitor_job.run(
            session,
            cluster.connection,
            path,
            pattern=pattern,
            window=window,
            horizon=timedelta(hours=horizon_hours),
            every=every,
            max_records_per_batch=max_records,
            strict=strict,
            watch=watch,
        )
    totals = monitor_job.totals(session, path)
    rows = [] if totals is None else [row.asDict() for row in totals.orderBy("entity", "window_start").collect()]
    if as_json:
        print_json({"standing": asdict(standing), "counts": rows})
        return
    page = Report(f"Dead letters in {path}")
    columns = ("entity", "reasons", "window_start", "letters")
    page.table(columns, [[row[name] for name in columns] for row in rows], title=_progress_text(standing))
    page.show(console())


@spark.command()
@click.argument("path")
@click.option("--allow-gaps", is_flag=True, help="Go on even if Kafka has removed letters that were not archived.")
@click.option(
    "--purge-before", type=click.DateTime(["%Y-%m-%d"]), help="Do not archive; delete the days before this one."
)
@click.option("--dry-run", is_flag=True, help="With --purge-before: only show which days would be deleted.")
@kept_as
@stream_options
@cluster
def archive(
    *,
    cluster: Cluster,
    as_json: bool,
    path: str,
    kind: delta.Kind | None,
    allow_gaps: bool,
    purge_before: datetime | None,
    dry_run: bool,
    pattern: str,
    every: str | None,
    max_records: int | None,
    strict: bool,
) -> None:
    """Keep dead letters with all their bytes, as Parquet or Delta, in the directory PATH."""
    if dry_run and purge_before is None:
        raise ValueError("--dry-run goes with --purge-before; without it letters are archived")
    knowing = kind == "delta" or delta.is_here(path)
    if purge_before is not None:
        check_written(path, cluster.config, "archive")
        session = cluster.session("archive", delta=knowing, of_files=True)
        days = archive_job.purge(session, path, purge_before.date(), dry_run=dry_run)
        print_json({"deleted": [day.isoformat() for day in days], "dry_run": dry_run})
        return
    check_writable(path, cluster.config)
    keeps_topics = not pattern
    pattern = cluster.await_letters(pattern, later=every is not None)
    session = cluster.session("archive", delta=knowing)
    with working("Archiving dead letters") as watch:
        standing = archive_job.run(
            session,
            cluster.connection,
            path,
            pattern=pattern,
            every=every,
            max_records_per_batch=max_records,
            fail_on_data_loss=not allow_gaps,
            strict=strict,
            kind=kind,
            keeps_topics=keeps_topics,
            watch=watch,
        )
    if as_json:
        print_json(asdict(standing))
    else:
        click.echo(_progress_text(standing))


@spark.command()
@click.argument("audit_path", metavar="AUDIT")
@click.option(
    "--entity",
    multiple=True,
    callback=not_empty,
    help="Only letters of this queue or SOW topic; may be repeated.",
)
@click.option(
    "--reason",
    type=click.Choice([one.value for one in Reason]),
    multiple=True,
    help="Only letters with this reason; may be repeated.",
)
@click.option("--since", type=INSTANT, help="Only messages that died at this instant or later.")
@click.option("--until", type=INSTANT, help="Only messages that died before this instant.")
@click.option(
    "--filter", "expression", default="", callback=not_empty, help="Only letters that this expression matches."
)
@click.option("--field", multiple=True, metavar="/PATH:KIND", help="The kind of a field: number, string or boolean.")
@click.option(
    "--max-redrives",
    type=click.IntRange(min=0),
    default=MAX_REDRIVES,
    show_default=True,
    help="Leave letters that were redriven this often.",
)
@click.option("--again", is_flag=True, help="Include letters that were sent before.")
@click.option("--overwrite", is_flag=True, help="Send a letter even if its SOW topic has a newer record of the key.")
@click.option(
    "--to",
    "to",
    default="",
    callback=not_empty,
    help="The topic to send to, instead of each letter's origin.",
)
@click.option(
    "--lifetime",
    type=click.Choice(["default", "original", "new"]),
    default="default",
    show_default=True,
    help="The queue's default, the old deadline, or --ttl-ms.",
)
@click.option("--ttl-ms", type=click.IntRange(min=0), help="With --lifetime new: the lifetime, ms; 0 = for ever.")
@click.option(
    "--end-unfinished",
    is_flag=True,
    help="Go on although a run with another directory was killed; what it has sent without a note is sent twice.",
)
@click.option("--rate", type=click.IntRange(min=1), help="The most messages a second, averaged over 5 s.")
@click.option("--limit", type=click.IntRange(min=1), help="The greatest number of messages, the oldest letters first.")
@click.option("--pattern", default="", help=PATTERN_HELP)
@click.option("--archive", "archive_path", help="Read the letters from this archive instead of the topics.")
@kept_as
@click.option(
    "--hook", default="", metavar="MODULE:NAME", help="A function that changes the records before they are sent."
)
@click.option("--send", is_flag=True, help="Send the letters. Without it the command only counts them.")
@cluster
def redrive(
    *,
    cluster: Cluster,
    as_json: bool,
    audit_path: str,
    entity: tuple[str, ...],
    to: str,
    lifetime: Literal["default", "original", "new"],
    ttl_ms: int | None,
    end_unfinished: bool,
    rate: int | None,
    limit: int | None,
    pattern: str,
    archive_path: str | None,
    kind: delta.Kind | None,
    hook: str,
    send: bool,
    **chosen: Any,
) -> None:
    """Send dead letters back, each once; the directory AUDIT remembers which were sent."""
    target = _target(to, lifetime, ttl_ms)
    choice = _choice(entity, **chosen)
    changes = _function(hook) if hook else None
    check_writable(audit_path, cluster.config)
    pattern = _check_source(cluster, archive_path, pattern, entity)
    _check_target(cluster, to, send)
    session, letters = _letters(cluster, pattern, archive_path, kind)
    with cluster.reading(pattern=pattern), working("Redriving" if send else "Counting what would be redriven"):
        done = audit.run(
            session,
            cluster.connection,
            letters,
            choice,
            target,
            path=audit_path,
            now_ms=cluster.now_ms(*entity[:1]),
            dry_run=not send,
            rate=rate,
            limit=limit,
            hook=changes,
            end_unfinished=end_unfinished,
        )
    _print(done, as_json)


def _target(to: str, lifetime: Literal["default", "original", "new"], ttl_ms: int | None) -> Target:
    """Return the target of a redrive.

    Raises:
        ValueError: a new lifetime has no length, or there is a length for no new lifetime, or the name of the topic
            says that no letters may be sent to it.
    """
    if why := target_fault(to):
        raise ValueError(why)
    if (lifetime == "new") != (ttl_ms is not None):
        raise ValueError("--lifetime new and --ttl-ms go together: how long is the new lifetime?")
    return Target(topic=to, lifetime=lifetime, ttl_ms=ttl_ms or 0)


def _choice(
    entity: tuple[str, ...],
    *,
    reason: tuple[str, ...],
    since: int | None,
    until: int | None,
    expression: str,
    field: tuple[str, ...],
    max_redrives: int,
    again: bool,
    overwrite: bool,
) -> Choice:
    """Return the choice of letters that the options make. It is checked before Spark starts.

    Raises:
        ValueError: the span of time or the kind of a field is not valid.
        lapse.core.expression.ExpressionError: the filter is not.
    """
    choice = Choice(
        entities=entity,
        reasons=reason,
        since_ms=since,
        until_ms=until,
        filter=expression,
        fields=dict(_field(text) for text in field),
        max_redrives=max_redrives,
        again=again,
        overwrite=overwrite,
    )
    check_span(since, until)
    condition(choice)
    return choice


def _check_source(cluster: Cluster, archive_path: str | None, pattern: str, entities: Sequence[str]) -> str:
    """Check, before Spark starts, that there are letters to read.

    Returns:
        The pattern of their topics; empty if they are in an archive.
    """
    if archive_path is None:
        return cluster.await_letters(pattern, entities)
    check_written(archive_path, cluster.config, "archive")
    return ""


def _check_target(cluster: Cluster, to: str, send: bool) -> None:
    """Check, before Spark starts, the topic to send to and the rights that a redrive needs.

    Raises:
        ValueError: no letters may be sent to that topic.
    """
    if to:
        cluster.await_topics([to], use="Write")
        audit.check_target(to, cluster.connection)
    for use in ("Read", "Write") if send else ("Read",):
        cluster.check_allowed([REDRIVEN], use)


def _letters(
    cluster: Cluster, pattern: str, archive_path: str | None, kind: delta.Kind | None
) -> tuple[SparkSession, DataFrame]:
    """Start Spark, and read dead letters from an archive if one is named, else from the topics.

    Raises:
        ValueError: nothing was ever archived there.
    """
    if archive_path is None:
        session = cluster.session("redrive")
        return session, read.dead_letters(session, cluster.connection, pattern=pattern)
    session = cluster.session("redrive", delta=kind == "delta" or delta.is_here(archive_path))
    archived = archive_job.letters(session, archive_path)
    if archived is None and not delta.output(session, archive_path, kind).has_run:
        raise ValueError(f"{archive_path}: no archive")
    return session, local_rows.frame(session, [], schema.DEAD_LETTER) if archived is None else archived


def _print(done: audit.Redriven, as_json: bool) -> None:
    if done.refusal:
        click.echo(f"Warning: With --send this is refused: {done.refusal}.", err=True)
    if as_json:
        print_json(asdict(done))
        return
    page = Report("Would be redriven (--send does it)" if done.dry_run else "Redriven")
    page.figure("messages", done.sent)
    page.figure("whose deadline has passed", done.deadline_passed)
    page.figure("refused, by what stands in the table", done.refused)
    page.figure("sent before, left out", done.earlier)
    if done.groups:
        page.table(list(done.groups[0]), [list(group.values()) for group in done.groups], title="By entity")
    page.show(console())


def _progress_text(standing: Standing) -> str:
    return f"{standing.records:,} records read, {standing.lag:,} behind"


def _function(name: str) -> audit.Hook:
    module, colon, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except ModuleNotFoundError as error:
        raise ValueError(f"--hook {name}: {error}. Name its directory in PYTHONPATH") from error
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--hook {name}: {error}") from error
    if not callable(found):
        raise ValueError(f"--hook {name!r}: expected module:function")
    return cast("audit.Hook", found)


_KINDS: Final[dict[str, Literal["boolean", "number", "string"]]] = {
    "boolean": "boolean",
    "number": "number",
    "string": "string",
}


def _field(text: str) -> tuple[str, Literal["boolean", "number", "string"]]:
    path, _, kind = text.rpartition(":")
    found = _KINDS.get(kind)
    if path and found is not None:
        return path, found
    raise ValueError(f"--field {text!r}: expected /path:number, /path:string or /path:boolean")

"""The commands for the output of streaming jobs: alerts, and merging of files."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import click

from lapse.option_type import Number
from lapse.tables import console
from lapse_spark import anomaly
from lapse_spark.letters import delta
from lapse_spark.local_directory import check_written
from lapse_spark.monitoring import alert
from lapse_spark.option import Cluster, cluster, kept_as, plain_faults, print_json, working
from lapse_spark.option_type import HOURS
from lapse_spark.report import Report
from lapse_spark.session import session
from lapse_spark.stream.directory_lock import locked
from lapse_spark.stream.output import TABLES


@click.command()
@click.argument("path")
@click.option("--within-hours", type=HOURS, default=24.0, show_default=True, help="Ignore what is older, in hours.")
@click.option(
    "--at-least",
    type=click.IntRange(min=1),
    default=anomaly.AT_LEAST,
    show_default=True,
    help="The least number of letters in an unusual window.",
)
@click.option(
    "--sigmas",
    type=Number(0),
    default=anomaly.SIGMAS,
    show_default=True,
    help="How many standard deviations above earlier windows an unusual one is.",
)
@click.option(
    "--poison",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="The number of letters of one key that is suspicious.",
)
@click.option("--topic", default="", help="A topic for new findings, as JSON, with their id as the key.")
@click.option(
    "--webhook",
    envvar="LAPSE_SPARK_WEBHOOK",
    default="",
    help="A URL for new findings, sent by POST. If it has a secret, use the environment. [env: LAPSE_SPARK_WEBHOOK]",
)
@cluster
def alerts(
    *,
    cluster: Cluster,
    as_json: bool,
    path: str,
    within_hours: float,
    at_least: int,
    sigmas: float,
    poison: int,
    topic: str,
    webhook: str,
) -> None:
    """Report unusual findings in the monitor's directory PATH, each of them once."""
    if webhook:
        alert.check_webhook(webhook)
    cluster.await_broker()
    if topic:
        cluster.await_topics([topic], use="Write")
    check_written(path, cluster.config)
    with working("Looking"):
        new = alert.run(
            cluster.session("alerts"),
            cluster.connection,
            path,
            now=datetime.fromtimestamp(cluster.now_ms() / 1000, UTC),
            within=timedelta(hours=within_hours),
            topic=topic,
            webhook=webhook,
            at_least=at_least,
            sigmas=sigmas,
            poison=poison,
        )
    if as_json:
        print_json([asdict(one) for one in new])
        return
    page = Report(f"New alerts from {path}")
    page.table(("rule", "entity", "text"), [[one.rule, one.entity, one.text] for one in new], title=f"{len(new)}")
    page.show(console())


@click.command()
@click.argument("path")
@kept_as
@click.option("--master", help="Spark's master; by default the configured one, or else all cores of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def compact(path: str, kind: delta.Kind | None, master: str | None, as_json: bool) -> None:
    """Merge the files in a directory of the monitor or the archive; not while the job runs."""
    with plain_faults(), working("Compacting"):
        check_written(path, made_by="archive")
        knowing = kind == "delta" or delta.is_here(path)
        output = delta.output(session("lapse compact", master=master, delta=knowing), path, kind)
        with nullcontext() if isinstance(output, delta.DeltaOutput) else locked(output):  # Delta's job may go on
            merged = {table: output.compact(table) for table in TABLES}
    if as_json:
        print_json(merged)
    else:
        click.echo(", ".join(f"{table}: {number} merged" for table, number in merged.items()))

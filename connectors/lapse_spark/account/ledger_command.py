"""`lapse spark ledger`: the fate of every message, computed once, or continuously with `--follow` (D3, D8)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from lapse.option_type import check_span
from lapse.protocol import topic, topic_pattern
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.instant import instant_ms
from lapse.tables import console
from lapse_client.reading.definitions import Definitions
from lapse_client.reading.underlying import reads_others_only
from lapse_spark import lapse_toml
from lapse_spark import ledger as ledger_job
from lapse_spark.account import statement
from lapse_spark.account.queue_topics import Scope
from lapse_spark.local_directory import check_named, check_replaceable
from lapse_spark.option import Cluster, cluster, event_schemas, print_json, working
from lapse_spark.option_type import DURATION, INSTANT
from lapse_spark.running import balance, running_ledger
from lapse_spark.running.intake import Followed
from lapse_spark.running.running_ledger import Rule

_DIRECTORY: Final = "lapse-ledger"


@click.command()
@click.option("--queue", default="", help="The queue; with --follow it may be left out: all queues of lapse.toml.")
@click.option("--topics", default="", metavar="NAME,…", help="Its underlying topics, all of them.")
@click.option("--dead-letter-topic", multiple=True, help="Where its letters are, besides dlq.<queue>; may be repeated.")
@click.option("--start", multiple=True, metavar="BOOKMARK", help="The first message of a partition; may be repeated.")
@click.option("--since", type=INSTANT, help="Only messages that arrived at this instant or later.")
@click.option("--until", type=INSTANT, help="Only fates decided before this instant; for a queue at work.")
@click.option(
    "--expected-depth",
    type=click.IntRange(min=0),
    help="The queue's own number of messages in all states, to be compared.",
)
@click.option("--ask/--no-ask", default=True, show_default=True, help="Ask the queue for its own list of messages.")
@click.option("--strict", is_flag=True, help="Records that cannot be read count as differences.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=ledger_job.SHOWN,
    show_default=True,
    help="The greatest number of differences to list.",
)
@click.option("--output", help="Directory for Parquet of all differences and of the quarantine.")
@click.option("--follow", is_flag=True, help="Keep running, and publish up to which instant the ledger balances.")
@click.option("--once", is_flag=True, help="With --follow: process what there is now, and end; for cron.")
@click.option("--every", type=DURATION, help="With --follow: the interval of batches; 0s = at once. [default: 10s]")
@click.option(
    "--grace", type=DURATION, help="With --follow: how long a difference may last before it is reported. [default: 1m]"
)
@click.option("--ask-every", type=DURATION, help="With --follow: how often the queue is asked. [default: 1m]")
@click.option("--horizon", type=DURATION, help="With --follow: how long fates are remembered. [default: 1d]")
@click.option("--state", metavar="DIR", help=f"With --follow: the directory of the ledger. [default: {_DIRECTORY}]")
@click.option(
    "--publish-to", metavar="TOPIC", help=f"With --follow: the topic for its results. [default: {balance.TOPIC}]"
)
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
    ask: bool,
    strict: bool,
    limit: int,
    output: str | None,
    follow: bool,
    written_with: tuple[Path, ...],
    **following: Any,
) -> None:
    """Compute what became of every message; exit with 1 if the ledger does not balance."""
    given = {"--since": since, "--until": until, "--expected-depth": expected_depth, "--output": output}
    _check(follow, {**{name: one is not None for name, one in given.items()}, "--strict": strict}, following)
    check_span(since, until)
    underlying = [name.strip() for name in topics.split(",") if name.strip()]
    marks = [Bookmark.parse(text) for text in start]
    schemas = [file.read_text("utf-8") for file in written_with]
    if follow:
        followed = _followed(cluster, queue, underlying, dead_letter_topic, marks)
        _follow(cluster, followed, _rule(following, ask=ask, shown=limit, written_with=schemas), following, as_json)
        return
    reading = _check_inputs(cluster, queue, underlying, dead_letter_topic, output)
    _warn_of_unread(cluster, queue, underlying)
    _check_since(cluster, queue, since)
    scope = Scope(
        dead_letter_topics=dead_letter_topic,
        starts={(mark.topic, mark.partition): mark.offset for mark in marks},
        since_ms=since,
        until_ms=until,
        written_with=schemas,
    )
    with cluster.reading(reading), working(f"Reckoning the ledger of {queue}"):
        found = ledger_job.run(
            cluster.session("ledger"),
            cluster.connection,
            queue,
            underlying,
            scope=scope,
            expected_depth=expected_depth,
            ask=ask,
            strict=strict,
            shown=limit,
            output=output,
            app_id=_app_id(cluster),
        )
    _print(found, as_json)


def _check_since(cluster: Cluster, queue: str, since_ms: int | None) -> None:
    """Check that an instant is not in the future.

    Raises:
        ValueError: it is.
    """
    if since_ms is not None and since_ms > (now_ms := cluster.now_ms(queue)):
        raise ValueError(f"--since {since_ms} is after the present instant {now_ms}: no message has arrived since then")


def _print(found: ledger_job.Ledger, as_json: bool) -> None:
    """Print a ledger; exit with 1 if it does not balance."""
    if as_json:
        print_json(found.as_json())
    else:
        statement.show(found, console())
    if not found.balanced:
        raise SystemExit(1)


def _check_inputs(
    cluster: Cluster, queue: str, underlying: Sequence[str], dead_letter_topics: Sequence[str], output: str | None
) -> list[str]:
    """Check, before Spark starts, the topics and rights that a ledger needs, and the directory of its output.

    Returns:
        The topics that are read.

    Raises:
        ValueError: options do not name a queue and its topics.
    """
    if not queue or not underlying:
        raise ValueError("which queue? give --queue, and its underlying topics with --topics")
    if output is not None:
        check_named(output)
        for part in ledger_job.OUTPUTS:
            check_replaceable(f"{output}/{part}", cluster.config)
    cluster.await_topics([*underlying, *dead_letter_topics], queue)
    cluster.check_allowed([topic.dead_letters(queue)], "Read")
    return [*underlying, topic.events(queue), topic.dead_letters(queue), *dead_letter_topics]


def _warn_of_unread(cluster: Cluster, queue: str, underlying: Sequence[str]) -> None:
    """Warn of topics that the queue does not read by its definition. It may have read them earlier."""
    with suppress(ValueError):  # with options that only Java's client has, nobody knows
        ours = cluster.connection.of_lapse()
        is_left_out = reads_others_only(Definitions(ours, ours.partitions()))
        for name in underlying:
            if is_left_out(queue, name):
                click.echo(
                    f"Warning: queue {queue} is defined over other topics than {name}. A message of that topic without "
                    "a fate counts as still queued, even if the queue never read the topic. Correct --topics, unless "
                    "the queue read it earlier",
                    err=True,
                )


def _check(follow: bool, once_only: Mapping[str, bool], following: Mapping[str, Any]) -> None:
    """Refuse options that exclude each other."""
    if follow:
        if wrong := [name for name, given in once_only.items() if given]:
            raise ValueError(f"{', '.join(wrong)}: not with --follow, which keeps the account of all messages")
        if following["once"] and following["every"] is not None:
            raise ValueError("--every: not with --once, which ends when it has read what there is")
        named = following["publish_to"]
        if named is not None and not topic.TOPIC_NAME.match(named):
            raise ValueError(f"--publish-to {named!r}: no name of a topic: up to 249 letters, digits, '.', '_' and '-'")
        return
    if wrong := [f"--{name.replace('_', '-')}" for name, value in following.items() if value not in (None, False)]:
        raise ValueError(f"{', '.join(wrong)}: only with --follow")


def _followed(
    cluster: Cluster,
    queue: str,
    underlying: Sequence[str],
    dead_letter_topics: Sequence[str],
    marks: Sequence[Bookmark],
) -> list[Followed]:
    """Return the queue in the options, or the queues of lapse.toml.

    Raises:
        ValueError: options are missing, or go without a queue.
    """
    if not queue:
        if underlying or dead_letter_topics or marks:
            raise ValueError(
                "--topics, --dead-letter-topic and --start go with --queue; lapse.toml says them of all queues"
            )
        followed = all_queues(cluster.file or lapse_toml.DEFAULT)
        for one in followed:
            cluster.await_topics([*one.underlying], one.name)
        return followed
    if not underlying:
        raise ValueError("--queue needs --topics, its underlying topics, all of them")
    cluster.await_topics([*underlying, *dead_letter_topics], queue)
    return [
        Followed(
            name=queue,
            underlying=underlying,
            dead_letter_topics=dead_letter_topics,
            start=marks,
            app_id=_app_id(cluster),
        )
    ]


def _app_id(cluster: Cluster) -> str | None:
    """Return the `app_id` of the deployment in the options; None = search for the queue's."""
    return None if cluster.file is None else lapse_toml.app_id(cluster.file)


def all_queues(file: Path) -> list[Followed]:
    """Return the queues in a `lapse.toml`.

    Raises:
        ValueError: the file or a queue in it is not valid; the text names it.
    """
    try:
        queues = lapse_toml.queues(file)
    except OSError as error:
        raise ValueError(f"which queue? give --queue and --topics, or a lapse.toml: {error}") from error
    if not queues:
        raise ValueError(f"{file}: no queues; give --queue and --topics")
    return [_configured(file, name, settings) for name, settings in queues.items()]


def _configured(file: Path, name: str, settings: Mapping[str, Any]) -> Followed:
    underlying, letters = settings.get("topics", []), settings.get("dead_letter", True)
    begins = settings.get("recovery_point", "beginning")
    pattern = settings.get("topic_pattern")
    try:
        matching = None if pattern is None else topic_pattern.compiled(pattern)
    except (re.error, TypeError) as error:
        raise ValueError(f"{file}: queue {name}: topic_pattern is no regular expression: {error}") from error
    if not isinstance(underlying, list) or not all(isinstance(topic, str) for topic in underlying):
        raise ValueError(f"{file}: queue {name}: topics is no list of names; `lapse check` names the fault")
    marks = begins if isinstance(begins, list) else [begins] if isinstance(begins, str) and _is_bookmark(begins) else []
    return Followed(
        name=name,
        underlying=underlying or ([name] if matching is None else []),
        dead_letter_topics=[letters] if isinstance(letters, str) and letters else [],
        start=[Bookmark.parse(str(text)) for text in marks],
        app_id=lapse_toml.app_id(file),
        matching=matching,
    )


def _is_bookmark(text: str) -> bool:
    """Return whether a text is to be read as a bookmark; `lapse check` names the fault of what is nothing at all."""
    try:
        instant_ms(text)
    except ValueError:
        return ":" in text
    return False


def _rule(following: Mapping[str, Any], *, ask: bool, shown: int, written_with: Sequence[str]) -> Rule:
    def span(name: str, otherwise: timedelta) -> timedelta:
        given = following[name]
        return otherwise if given is None else timedelta(milliseconds=given)

    return Rule(
        topic=following["publish_to"] or balance.TOPIC,
        grace=span("grace", running_ledger.GRACE),
        ask_every=span("ask_every", running_ledger.ASK_EVERY) if ask else None,
        horizon=span("horizon", running_ledger.HORIZON),
        shown=shown,
        written_with=written_with,
    )


def _interval(every_ms: int | None) -> str:
    """Return the interval of batches in Spark's notation."""
    return running_ledger.EVERY if every_ms is None else f"{every_ms} milliseconds"


def _follow(
    cluster: Cluster, followed: Sequence[Followed], rule: Rule, following: Mapping[str, Any], as_json: bool
) -> None:
    names = followed[0].name if len(followed) == 1 else f"{len(followed)} queues"
    with working(f"Keeping the ledger of {names}") as watch:
        found = running_ledger.run(
            cluster.session("ledger"),
            cluster.connection,
            followed,
            following["state"] or _DIRECTORY,
            rule,
            every=None if following["once"] else _interval(following["every"]),
            watch=watch,
        )
    if as_json:
        print_json({"balances": [one.as_json() for one in found]})
    else:
        for one in found:
            balance.show(one, console())
    if not all(one.ledger.balanced for one in found):
        raise SystemExit(1)

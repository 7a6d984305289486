"""`lapse transfer`: hands messages of a queue over to a queue of another deployment."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lapse.cli import cluster
from lapse.cli.transfer_report import preview, report, report_cancelled
from lapse.log_limit import LogLimit
from lapse.option_type import Read, not_empty
from lapse.process_end import ended_by_signals
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.hand_over import transfer_id
from lapse.runtime.worker_log import TextFormatter, begin
from lapse_client.error import ConnectionFailed, LapseError
from lapse_client.queue.queue import Queue

if TYPE_CHECKING:
    from lapse.transfer.link import Link
    from lapse.transfer.mover import Choice, Mover
    from lapse_client.kafka.connection import Connection

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
"""How long a follower waits before it tries again after an error, s."""

_ENDING_S: Final = 20.0
"""How long a process that follows may take to end after a signal, s."""

_ID: Final = Read("id", transfer_id)


@click.command()
@click.argument("queue")
@click.option("--to", "target", metavar="BROKERS", callback=not_empty, help="The deployment that takes over.")
@click.option("--to-queue", metavar="NAME", callback=not_empty, help="The queue there; the same name by default.")
@click.option(
    "--to-topic",
    metavar="TOPIC",
    callback=not_empty,
    help="Its underlying topic; the queue's publish target by default.",
)
@click.option(
    "--bookmark",
    "bookmarks",
    multiple=True,
    metavar="TOPIC:PARTITION:FIRST[-LAST]",
    help="These messages; may be repeated.",
)
@click.option("-f", "--filter", "expression", help="Only messages for which this expression is true.")
@click.option("--all", "everything", is_flag=True, help="All messages that were published before now.")
@click.option("--resume", type=_ID, metavar="ID", help="Continue an interrupted transfer.")
@click.option(
    "--cancel",
    type=_ID,
    metavar="ID",
    help="Take back what an interrupted transfer holds, also if the queue there was deleted.",
)
@click.option(
    "--target-is-gone",
    is_flag=True,
    help="With --cancel: do not ask the deployment that takes over. Records there are not discarded.",
)
@click.option(
    "--follow", is_flag=True, help="Keep running: hand over messages that consumers there have room for, and none here."
)
@click.option("--max-clock-skew", metavar="DURATION", help="With --follow: warn of a greater difference of the clocks.")
@click.option("--id", "ident", type=_ID, metavar="ID", help="The new transfer's id; by default a random one.")
@click.option("--dry-run", is_flag=True, help="Only count what would be handed over.")
@click.option("-c", "--config", type=click.Path(path_type=Path), help="lapse.toml, or a file like transfer.toml.")
@cluster.properties
@click.option(
    "-b",
    "--bootstrap-servers",
    callback=not_empty,
    help="The deployment that hands over; from lapse.toml by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def transfer(
    queue: str,
    target: str | None,
    to_queue: str | None,
    to_topic: str | None,
    bookmarks: tuple[str, ...],
    expression: str | None,
    everything: bool,
    resume: str | None,
    cancel: str | None,
    target_is_gone: bool,
    follow: bool,
    max_clock_skew: str | None,
    ident: str | None,
    dry_run: bool,
    config: Path | None,
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Hand messages over to a queue of another deployment, with their deadlines.

    Each message is delivered on one side only, even after failures. Continue an interrupted transfer with --resume, or
    take it back with --cancel. Exit code: 0 all was handed over, 3 something stayed, 1 it failed.
    """
    from confluent_kafka import KafkaException

    from lapse.config import ConfigError
    from lapse.transfer.copier import TransferError
    from lapse.transfer.mover import Mover

    _check_choice(bool(bookmarks) or expression is not None, everything, resume, cancel, follow)
    _check_beside(follow, bool(ident) or dry_run, bool(max_clock_skew), bool(cancel), target_is_gone)
    name = resume or cancel or ident or f"t-{uuid.uuid4().hex[:12]}"
    given = {"from": bootstrap_servers, "to": target, "to_queue": to_queue, "to_topic": to_topic}
    given["max_clock_skew"] = max_clock_skew
    try:
        choice = _choice(bookmarks, expression)
        link, source = _link(config, {key: value for key, value in given.items() if value})
        if dry_run:
            preview(source, queue, choice.bookmarks, expression, as_json)
            return
        there = _target(link, queue, resume or cancel, target_is_gone)
        if follow:
            _follow(link, source, queue, there)
            return
        mover = Mover(
            source, queue, there, link.to_queue or queue, link.to_topic, name,
            only_cancels=bool(cancel), is_target_gone=target_is_gone,
        )  # fmt: skip
        total = _expected(source, queue, choice.bookmarks, expression, resume or cancel)
        quiet = as_json or not sys.stderr.isatty()
        with _progress(mover, name, total, quiet), _resume_hint(mover, name, bool(resume)), mover:
            if cancel:
                report_cancelled(mover, mover.cancel(), queue, name, as_json)
            else:
                outcome = mover.resume() if resume else mover.run(choice)
                report(mover.target, name, outcome, source, queue, as_json)
    except (ConfigError, ValueError, TransferError, LapseError, KafkaException) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _progress(mover: Mover, name: str, total: int | None, quiet: bool) -> Iterator[None]:
    """Show the progress of a transfer on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task(f"transfer {name}", total=total)
        mover.progress = lambda count: bar.advance(task, count)
        yield


def _check_choice(named: bool, everything: bool, resume: str | None, cancel: str | None, follow: bool) -> None:
    """Check that exactly one option says what to transfer.

    Raises:
        click.UsageError: none does, or several do.
    """
    given = {
        "--bookmark or --filter": named,
        "--all": everything,
        "--resume": resume is not None,
        "--cancel": cancel is not None,
        "--follow": follow,
    }
    chosen = [name for name, is_given in given.items() if is_given]
    if not chosen:
        raise click.UsageError(
            "name messages by --bookmark or --filter, or --all; or a transfer by --resume or --cancel; or --follow"
        )
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} exclude each other; give one of them")


def _check_beside(follow: bool, has_others: bool, has_skew: bool, cancels: bool, is_target_gone: bool) -> None:
    """Check the options that exclude `--follow`, the one that needs it, and the one that needs `--cancel`.

    Raises:
        click.UsageError: they are not possible together.
    """
    if follow and has_others:
        raise click.UsageError(
            "--follow names its transfers itself, and has no --dry-run; leave out --id and --dry-run"
        )
    if has_skew and not follow:
        raise click.UsageError("--max-clock-skew needs --follow")
    if is_target_gone and not cancels:
        raise click.UsageError("--target-is-gone needs --cancel: nothing can be handed over to what is gone")


@contextlib.contextmanager
def _resume_hint(mover: Mover, name: str, resumes: bool) -> Iterator[None]:
    """Add to an error how to finish the transfer, if it has begun.

    Args:
        mover: the transfer.
        name: its id.
        resumes: whether it had been begun before.

    Raises:
        click.ClickException: the transfer failed.
    """
    from confluent_kafka import KafkaException

    from lapse.transfer.copier import TransferError

    try:
        yield
    except (TransferError, LapseError, KafkaException) as error:
        hint = f"\nWhat was begun can be brought to its end: --resume {name}" if mover.begun else ""
        if resumes and mover.lacks_target:
            hint = (
                f"\nIf it was deleted, take back what transfer {name} holds: --cancel {name}. Or create it again, and "
                f"then --resume {name}"
            )
        raise click.ClickException(f"{error}{hint}") from error


def _follow(link: Link, source: Connection, queue: str, there: Connection) -> None:
    """Hand over new messages until Ctrl-C or SIGTERM. While a side does not answer, try again.

    Raises:
        TransferError: the queues cannot be followed so, or another process does it.
        LapseError: one of the queues is missing, or a right is.
        KafkaException: a right is missing.
    """
    from confluent_kafka import KafkaException

    from lapse.transfer.copier import TransferError
    from lapse.transfer.follower import Follower
    from lapse.transfer.retries import Retries

    begin(TextFormatter("%(asctime)s %(levelname)s %(message)s"))
    stopping = threading.Event()
    left = "The next one with this link returns what it holds"
    with ended_by_signals(_ENDING_S, logger, "the transfer", left, stopping.set):
        retries, limit, generation = Retries(), LogLimit(), 0
        while not stopping.is_set():
            to_queue, skew_ms = link.to_queue or queue, link.max_clock_skew
            try:
                with Follower(source, queue, there, to_queue, link.to_topic, skew_ms, _log_handed) as follower:
                    logger.info("following %s for %s", queue, follower.target)
                    try:
                        follower.follow(stopping, generation)
                    finally:
                        generation = follower.generation or generation
                        if follower.begun:
                            retries.note_begun()
            except (LapseError, KafkaException, TransferError) as error:
                now_s = time.monotonic()
                if retries.is_final(error, now_s):
                    raise
                if limit.allows(error, now_s):
                    logger.warning("%s; trying again", error)
                stopping.wait(_AGAIN_S)


def _log_handed(count: int) -> None:
    logger.info("%d messages handed over", count)


def _choice(bookmarks: tuple[str, ...], expression: str | None) -> Choice:
    """Return the choice of messages that the options make.

    Raises:
        ValueError: a bookmark or the filter is not valid.
    """
    from lapse.core.expression import compile_filter
    from lapse.transfer.mover import Choice

    ranges = tuple(BookmarkRange.parse(text) for text in bookmarks)
    if expression is not None:
        compile_filter(expression)
    return Choice(ranges, expression or "")


def _link(config: Path | None, given: dict[str, str]) -> tuple[Link, Connection]:
    """Return the link and the connection to its source, from a file and the options.

    Raises:
        ConfigError: the file or an option is not valid, or one is missing.
        LapseError: the source does not answer.
    """
    from lapse.transfer.link import load

    own = None if config is None or cluster.is_lapse_toml(config) else config
    link = load(own, given)
    return link, _source(link, given.get("from"), None if own else config)


def _source(link: Link, bootstrap_servers: str | None, lapse_toml: Path | None) -> Connection:
    """Connect to the source: as the link's file says, else as the environment and `lapse.toml` do."""
    if lapse_toml is None and (link.from_security is not None or (link.source and link.source != bootstrap_servers)):
        source = link.source_connection()
        source.await_broker(cluster.PATIENCE_S)
        return source
    return cluster.connection(bootstrap_servers, lapse_toml)


def _target(link: Link, queue: str, under_way: str | None, is_gone: bool) -> Connection:
    """Return the connection to the deployment that takes over. Wait for it, unless it is gone.

    Args:
        link: the link.
        queue: the queue here.
        under_way: the id of a transfer that has begun; None for a new one.
        is_gone: whether that deployment is gone.

    Raises:
        ConnectionFailed: it does not answer. If a transfer has begun, the text says how to give up what is there.
    """
    there = link.target_connection()
    if is_gone:
        return there
    try:
        there.await_broker(cluster.PATIENCE_S)
    except ConnectionFailed as error:
        if under_way:
            remedy = f"lapse transfer {queue} --to {link.target} --cancel {under_way} --target-is-gone"
            error.args = (f"{error}\nIf that deployment is gone for good, take back what the transfer holds: {remedy}",)
        raise
    return there


def _expected(
    source: Connection, queue: str, ranges: tuple[BookmarkRange, ...], expression: str | None, under_way: str | None
) -> int | None:
    """Return about how many messages will be handed over, or None if that is not known."""
    if ranges or expression is not None:
        return None
    with Queue(queue, connection=source) as client:
        counts: dict[str, int] = client.depth()
    if under_way:
        return counts.get("transferring", 0)
    return sum(counts.get(state, 0) for state in ("depth", "scheduled", "held")) - counts.get("leased", 0)

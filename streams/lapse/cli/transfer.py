"""`lapse transfer`: hands messages of a queue over to a queue of another deployment."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from lapse.cli import cluster
from lapse.cli.settlement_results import later_names
from lapse.log_limit import LogLimit
from lapse.option_type import Read, not_empty
from lapse.process_end import ended_by_signals
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.hand_over import transfer_id
from lapse.runtime.worker_log import TextFormatter, begin
from lapse_client.error import LapseError
from lapse_client.queue.named_partitions import NamedPartitions
from lapse_client.queue.queue import Queue
from lapse_client.reading.count_text import count_text
from lapse_client.subscriber.settlement import STALE

if TYPE_CHECKING:
    from lapse.transfer.link import Link
    from lapse.transfer.mover import Mover, Outcome
    from lapse_client.kafka.connection import Connection

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 1.0
"""How long a follower waits before it tries again after an error, s."""

_ENDING_S: Final = 20.0
"""How long a process that follows may take to end after a signal, s."""

_SOMETHING_STAYED: Final = 3
"""Exit code if messages stayed in the queue; 0 = all were handed over, 1 = the transfer failed."""

_ID: Final = Read("id", transfer_id)

_TRANSFERRING: Final = "transferring"

_GOES = ("available", "delayed", "scheduled", "held")
"""States of messages that a transfer hands over."""


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
    from lapse.core.expression import compile_filter
    from lapse.transfer.copier import TransferError
    from lapse.transfer.link import load
    from lapse.transfer.mover import Choice, Mover

    _check_choice(bool(bookmarks) or expression is not None, everything, resume, cancel, follow)
    _check_follow(follow, bool(ident) or dry_run, bool(max_clock_skew))
    name = resume or cancel or ident or f"t-{uuid.uuid4().hex[:12]}"
    given = {"from": bootstrap_servers, "to": target, "to_queue": to_queue, "to_topic": to_topic}
    given["max_clock_skew"] = max_clock_skew
    try:
        ranges = tuple(BookmarkRange.parse(text) for text in bookmarks)
        if expression is not None:
            compile_filter(expression)
        own = None if config is None or cluster.is_lapse_toml(config) else config
        link = load(own, {key: value for key, value in given.items() if value})
        source = _source(link, bootstrap_servers, None if own else config)
        if dry_run:
            _preview(source, queue, ranges, expression, as_json)
            return
        there = link.target_connection()
        there.await_broker(cluster.PATIENCE_S)
        if follow:
            _follow(link, source, queue, there)
            return
        total = _expected(source, queue, ranges, expression, resume or cancel)
        with _progress(name, total, as_json or not sys.stderr.isatty()) as moved:
            to = link.to_queue or queue
            mover = Mover(source, queue, there, to, link.to_topic, name, moved, only_cancels=bool(cancel))
            with _resume_hint(mover, name, bool(resume)), mover:
                if cancel:
                    _cancel(mover, queue, name, as_json)
                else:
                    outcome = mover.resume() if resume else mover.run(Choice(ranges, expression or ""))
                    others = _other_transfers(source, queue, name, outcome.left)
                    _report(mover.target, name, outcome, others, _names_now(source, queue, outcome.stale), as_json)
    except (ConfigError, ValueError, TransferError, LapseError, KafkaException) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _progress(name: str, total: int | None, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show the progress of a transfer on standard error. Yield what is called with the number of messages moved."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task(f"transfer {name}", total=total)
        yield lambda count: bar.advance(task, count)


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


def _check_follow(follow: bool, has_others: bool, has_skew: bool) -> None:
    """Check the options that exclude `--follow`, and the one that needs it.

    Raises:
        click.UsageError: they are not possible together.
    """
    if follow and has_others:
        raise click.UsageError(
            "--follow names its transfers itself, and has no --dry-run; leave out --id and --dry-run"
        )
    if has_skew and not follow:
        raise click.UsageError("--max-clock-skew needs --follow")


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


def _source(link: Link, bootstrap_servers: str | None, lapse_toml: Path | None) -> Connection:
    """Connect to the source: as the link's file says, else as the environment and `lapse.toml` do."""
    if lapse_toml is None and (link.from_security is not None or (link.source and link.source != bootstrap_servers)):
        source = link.source_connection()
        source.await_broker(cluster.PATIENCE_S)
        return source
    return cluster.connection(bootstrap_servers, lapse_toml)


def _cancel(mover: Mover, queue: str, name: str, as_json: bool) -> None:
    returned = mover.cancel()
    thrown, given_up = mover.outcome.discarded, mover.outcome.given_up
    if as_json:
        facts = {"transfer": name, "returned": returned, "discarded": thrown}
        click.echo(orjson.dumps({**facts, "given_up": [str(one) for one in given_up]}))
        return
    there = count_text(thrown, "record")
    click.echo(f"{count_text(returned, 'message')} returned to the queue; {there} discarded there.")
    if given_up:
        count, one = sum(map(len, given_up)), given_up[0]
        click.echo(
            f"{count_text(count, 'message')} had left before, and {mover.target} was deleted with what it had: "
            f"{', '.join(map(str, given_up))}. What nobody has handled there comes back with: "
            f"lapse queue rewind {queue} --to {one.topic}:{one.partition}:{one.first} --handed-over"
        )
    elif not mover.lacks_target:
        click.echo("What was handed over before stays there.")


def _other_transfers(source: Connection, queue: str, name: str, left: Mapping[str, int]) -> list[str]:
    """Return the ids of other transfers that hold messages of the queue, if some stayed because of that."""
    if not left.get(_TRANSFERRING):
        return []
    with Queue(queue, connection=source) as client:
        return sorted({one.subscription for one in client.peek(state=_TRANSFERRING)} - {name, ""})


def _names_now(source: Connection, queue: str, stale: list[BookmarkRange]) -> list[str]:
    """Return the bookmarks of messages in the queue that a rewind brought back, by their older names."""
    if not stale:
        return []
    with Queue(queue, connection=source) as client:
        return later_names(client, stale)


def _report(target: str, name: str, outcome: Outcome, others: list[str], names_now: list[str], as_json: bool) -> None:
    """Print the outcome of a transfer.

    Raises:
        click.exceptions.Exit: something stayed.
    """
    left = {what: count for what, count in sorted(outcome.left.items()) if count}
    if as_json:
        facts = {"transfer": name, "transferred": outcome.transferred, "expired": outcome.expired, "left": left}
        facts |= {"held_by": others, "discarded": outcome.discarded, "names_now": names_now}
        click.echo(orjson.dumps(facts))
    else:
        click.echo(f"{count_text(outcome.transferred, 'message')} handed over to {target} (transfer {name}).")
        if outcome.expired:
            click.echo(f"{outcome.expired:,} expired on the way, on both sides.")
        for what, count in left.items():
            more = _names_text(names_now) if what == STALE else _holders_text(what, others)
            click.echo(f"{count:,} stayed: {what}{more}.", err=True)
    if left:
        raise click.exceptions.Exit(_SOMETHING_STAYED)


def _holders_text(state: str, others: list[str]) -> str:
    """Return which transfers hold the messages of this state, and how to end them; empty for another state."""
    if state != _TRANSFERRING or not others:
        return ""
    which = "another transfer holds them" if len(others) == 1 else "other transfers hold them"
    return f"; {which}, {', '.join(others)}: end it with --resume or --cancel"


def _names_text(names_now: list[str]) -> str:
    """Return what messages are called now that were named as before a rewind."""
    now = f"now it is {', '.join(names_now)}" if names_now else "it is not in the queue now"
    return f"; a rewind has superseded this bookmark, and {now}"


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


def _preview(
    source: Connection, queue: str, ranges: tuple[BookmarkRange, ...], expression: str | None, as_json: bool
) -> None:
    """Print how many messages would be handed over, and how many would stay, by state.

    Raises:
        ValueError: a bookmark is of a partition that its topic does not have.
    """
    NamedPartitions(source).check(ranges)
    names_now: list[str] = []
    with Queue(queue, connection=source) as client:
        if ranges or expression is not None:
            found: dict[str, int] = {}
            for one in client.peek(filter=expression):
                bookmark = BookmarkRange.parse(one.bookmark)
                if not ranges or any(_is_within(bookmark, some) for some in ranges):
                    found[one.state] = found.get(one.state, 0) + 1
            names_now = later_names(client, ranges)
        else:
            counts = client.depth()
            found = {state: counts.get(state, 0) for state in (*_GOES, "leased", _TRANSFERRING)}
    goes = sum(count for state, count in found.items() if state in _GOES)
    stays = {state: count for state, count in sorted(found.items()) if count and state in ("leased", _TRANSFERRING)}
    others = _other_transfers(source, queue, "", stays)
    if as_json:
        click.echo(orjson.dumps({"transferred": goes, "left": stays, "held_by": others, "names_now": names_now}))
        return
    click.echo(f"{count_text(goes, 'message')} would be handed over.")
    for state, count in stays.items():
        click.echo(f"{count:,} would stay: {state}{_holders_text(state, others)}.")
    if names_now:
        click.echo(f"A rewind has superseded bookmarks that were named: now it is {', '.join(names_now)}.", err=True)


def _is_within(one: BookmarkRange, some: BookmarkRange) -> bool:
    return (one.topic, one.partition) == (some.topic, some.partition) and some.first <= one.first <= some.last

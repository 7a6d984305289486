"""What `lapse transfer` prints: what would go, what has gone, what came back, and what stayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import click
import orjson

from lapse.cli.settlement_results import later_names
from lapse.protocol.bookmark import BookmarkRange
from lapse_client.queue.named_partitions import NamedPartitions
from lapse_client.queue.queue import Queue
from lapse_client.reading.count_text import count_text
from lapse_client.subscriber.settlement import STALE

if TYPE_CHECKING:
    from lapse.transfer.mover import Mover, Outcome
    from lapse_client.kafka.connection import Connection

_SOMETHING_STAYED: Final = 3
"""Exit code if messages stayed in the queue; 0 = all were handed over, 1 = the transfer failed."""

_TRANSFERRING: Final = "transferring"

_GOES = ("available", "delayed", "scheduled", "held")
"""States of messages that a transfer hands over."""


def preview(
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


def report(target: str, name: str, outcome: Outcome, source: Connection, queue: str, as_json: bool) -> None:
    """Print the outcome of a transfer, and what the queue here says of messages that stayed.

    Raises:
        click.exceptions.Exit: something stayed.
    """
    others = _other_transfers(source, queue, name, outcome.left)
    names_now = _names_now(source, queue, outcome.stale)
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


def report_cancelled(mover: Mover, returned: int, queue: str, name: str, as_json: bool) -> None:
    """Print what came back of a cancelled transfer, and what did not."""
    thrown, given_up = mover.outcome.discarded, mover.outcome.given_up
    if mover.is_target_gone:
        where = mover.target or "the deployment there"
        click.echo(
            f"Warning: {where} was not asked. What it has of this transfer stays there. Consumers there see of it only "
            f"what had left here before. If it answers again, discard the rest: lapse transfer {queue} --cancel {name}",
            err=True,
        )
    if as_json:
        facts = {"transfer": name, "returned": returned, "discarded": thrown}
        click.echo(orjson.dumps({**facts, "given_up": [str(one) for one in given_up]}))
        return
    there = count_text(thrown, "record")
    click.echo(f"{count_text(returned, 'message')} returned to the queue; {there} discarded there.")
    if given_up:
        count, one = sum(map(len, given_up)), given_up[0]
        fate = "may have them" if mover.is_target_gone else "was deleted with what it had"
        click.echo(
            f"{count_text(count, 'message')} had left before, and {mover.target or 'the queue there'} {fate}: "
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

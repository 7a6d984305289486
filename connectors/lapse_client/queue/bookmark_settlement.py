"""Settles messages of a queue by bookmark, each at the shard that has it (Q8, C81)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse_client.session.session import Session
from lapse_client.subscriber.settlement import SettlementResult, chunks, results

_UNKNOWN: Final = "unknown"

BookmarkKey = tuple[str, int, int]
"""Topic, partition and position of a message."""


def settle_bookmarks(
    session: Session[None], command: Command, bookmarks: Iterable[BookmarkRange], timeout_s: float
) -> list[SettlementResult]:
    """Settle messages by bookmark.

    The shard that reads a partition is asked first. It does not know a message that an older shard has still, which
    read that partition while the queue had fewer shards. So these are asked then.

    Args:
        session: the session with the queue.
        command: the settlement without bookmarks.
        bookmarks: ranges of messages.
        timeout_s: how long to wait for the answers of each turn, in seconds.

    Raises:
        CommandFailed, EntityDeleted: a shard refused.
    """
    named: dict[int, list[BookmarkRange]] = {}
    for one in bookmarks:
        named.setdefault(one.partition, []).append(one)

    def settle(some: Mapping[int, Sequence[BookmarkRange]], turn: int) -> list[SettlementResult]:
        asked = [
            (session.shards_of(partition)[turn], replace(command, bookmarks=part))
            for partition, ranges in some.items()
            for part in chunks([*map(str, ranges)])
        ]
        return [result for answer in session.ask_each(asked, timeout_s) for result in results(answer)]

    found, left = settle(named, 0), named
    for turn in range(1, max((len(session.shards_of(partition)) for partition in named), default=0)):
        left = {
            partition: unknown
            for partition, ranges in left.items()
            if turn < len(session.shards_of(partition)) and (unknown := [*_unknown_parts(ranges, found)])
        }
        if not left:
            break
        found = [*_replaced(found, settle(left, turn))]
    return found


def _unknown_parts(named: Sequence[BookmarkRange], found: Sequence[SettlementResult]) -> Iterator[BookmarkRange]:
    """Yield the parts of ranges that no shard has known so far, each with its range's fencing token."""
    for one, result in found:
        if result == _UNKNOWN:
            covering = (some for some in named if some.topic == one.topic and some.partition == one.partition)
            for some in covering:
                first, last = max(some.first, one.first), min(some.last, one.last)
                if first <= last:
                    yield replace(some, first=first, last=last)
                    break


def _replaced(found: Sequence[SettlementResult], later: Sequence[SettlementResult]) -> Iterator[SettlementResult]:
    """Yield results, with those of an older shard in the place of the ones that were unknown."""
    by_bookmark: dict[BookmarkKey, SettlementResult] = {}
    for one in later:
        by_bookmark.setdefault((one.messages.topic, one.messages.partition, one.messages.first), one)
    for one in found:
        messages = one.messages
        while one.result == _UNKNOWN and messages.first <= messages.last:
            part = by_bookmark.get((messages.topic, messages.partition, messages.first))
            if part is None:
                break
            yield part
            messages = replace(messages, first=part.messages.last + 1)
        if messages.first <= messages.last:
            yield one._replace(messages=messages)

"""Repeats: arriving messages with the id of an earlier one (X6, C43)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from lapse.core.lifetime import NO_TIMESTAMP
from lapse.core.queue.arrival.arrival import Arrivals
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.repeats import Batch, Repeats, chunk_of, name_of


class ComparedBatch(NamedTuple):
    """The outcome of comparing a batch with the ids known so far.

    Attributes:
        repeats: offsets that repeat an earlier message.
        ids: new ids, each with its timestamp, ms since the epoch.
        newest_ms: latest timestamp of a message with an id, ms since the epoch.
    """

    repeats: set[int]
    ids: tuple[tuple[str, int], ...]
    newest_ms: int


def apply(repeats: Repeats, change: Change) -> None:
    """Carry out a change: remember the ids of a batch, or forget a chunk of ids."""
    if change.kind is ChangeKind.IDENTIFIED:
        repeats.add(change.offset, chunk_of(change.source, change.until_ms, change.facts["ids"]))
    else:
        repeats.forget(change.offset)


def find_repeats(repeats: Repeats, source: int, arrivals: Arrivals, window_ms: int) -> ComparedBatch:
    """Find the messages of a batch that repeat an earlier message, of this batch or of one before.

    A message that is dead-lettered on arrival does not occupy its id (C43).
    """
    dead = {offset for offset, _ in (*arrivals.invalid, *arrivals.expired)}
    found: set[int] = set()
    batch = Batch(repeats, source, window_ms)
    now_ms = 0
    for offset, raw, timestamp_ms in arrivals.identified:
        now_ms = now_ms if timestamp_ms == NO_TIMESTAMP else timestamp_ms
        message_id = name_of(raw)
        if batch.is_repeat(message_id, now_ms):
            found.add(offset)
        elif offset not in dead:
            batch.occupy(message_id, now_ms)
    return ComparedBatch(found, batch.ids, batch.newest_ms)


def without_offsets(arrivals: Arrivals, repeats: set[int]) -> Arrivals:
    """Return a batch without the messages at some offsets."""
    kept = [at for at, offset in enumerate(arrivals.offsets) if offset not in repeats]
    return replace(
        arrivals,
        offsets=[arrivals.offsets[at] for at in kept],
        deadlines_ms=[arrivals.deadlines_ms[at] for at in kept],
        scheduled=[one for one in arrivals.scheduled if one.offset not in repeats],
        invalid=[one for one in arrivals.invalid if one[0] not in repeats],
        expired=[one for one in arrivals.expired if one[0] not in repeats],
    )

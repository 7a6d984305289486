"""Looks into the target of forwarding for the messages that the former owner leased to the forwarder (C38).

Such a message may be in the target or not, because the former owner died before its journal said so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from lapse.protocol import header
from lapse.runtime.shard.log import Log
from lapse.runtime.tp import TP

_AT_ONCE: Final = 10_000
"""About how many offsets are read at a time."""

_MARGIN_MS: Final = 10_000
"""How far the clocks of brokers may differ, ms. The look begins so long before the first lease."""


async def found_in(log: Log, tps: Iterable[TP], since_ms: int, stems: Collection[bytes]) -> set[bytes]:
    """Return which forwarded messages are in a target topic.

    Args:
        log: reads the target.
        tps: the partitions of the target.
        since_ms: none of the messages was written before this instant, ms since the epoch.
        stems: the messages, by the beginnings of their ids (`forwarding.id_stem`).
    """
    floors = await log.offset_at(tps, max(0, since_ms - _MARGIN_MS))
    ends = await log.existing_ends(floors)
    found: set[bytes] = set()
    for tp, first in floors.items():
        end = ends.get(tp, first)
        while first < end and len(found) < len(stems):
            records = await log.read(*tp, first, min(first + _AT_ONCE, end) - 1)
            if not records:
                break
            found.update(stem for stem in map(_stem, records) if stem in stems)
            first = records[-1].offset + 1
        await log.release(*tp)
    return found


def _stem(record: Any) -> bytes:
    """Return the beginning of a record's message id, without its last part; empty if it has no id."""
    stated = next((value for name, value in record.headers if name == header.MESSAGE_ID and value), b"")
    return bytes(stated).rpartition(b"/")[0]

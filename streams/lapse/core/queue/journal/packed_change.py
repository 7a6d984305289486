"""Packed changes: the bytes of a change in the journal, first its numbers, then the values of variable length."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from lapse.core.queue.arrival.trait import NONE, Traits
from lapse.core.queue.change import COME_BACK, Change, ChangeKind
from lapse.core.queue.journal import places

_HEAD: Final = struct.Struct("<BqiqH6I")
_AS_BITS: Final = 0x80
"""The bit set in the kind of a change whose places are packed as bits."""

_RETRY_DELAYS: Final = "retries"
"""The key, in the facts of a change, of the retry delays that messages state, if any does."""


def pack(change: Change) -> list[bytes]:
    """Return the bytes of a change, in pieces."""
    packed, as_bits = places.pack(change.places)
    instants_ms = change.deadlines_ms if change.untils_ms is None else change.untils_ms
    facts = change.facts
    if change.traits.retries is not None:
        facts = {**facts, _RETRY_DELAYS: change.traits.retries.tolist()}
    pieces = [
        packed,
        b"" if instants_ms is None else instants_ms.astype("<i8").tobytes(),
        *change.traits.encode(),
        json.dumps(facts).encode() if facts else b"",
    ]
    kind = change.kind | (_AS_BITS if as_bits else 0)
    lengths = map(len, pieces)
    return [_HEAD.pack(kind, change.offset, change.holder, change.until_ms, change.source, *lengths), *pieces]


def unpack(data: bytes, at: int, count: int) -> Iterator[Change]:
    """Read changes that `pack` wrote.

    Args:
        data: the bytes that contain the changes.
        at: index of the first change's first byte.
        count: number of changes.
    """
    for _ in range(count):
        kind, offset, holder, until_ms, source, *lengths = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        pieces: list[bytes] = []
        for length in lengths:
            pieces.append(data[at : at + length])
            at += length
        packed, instants, ranks, flags, groups, facts_json = pieces
        of, facts = ChangeKind(kind & ~_AS_BITS), json.loads(facts_json) if facts_json else {}
        instants_ms = np.frombuffer(instants, "<i8").astype(np.int64) if instants else None
        retries = facts.pop(_RETRY_DELAYS, None)
        traits = Traits.decode(ranks, flags, groups) if ranks or flags or groups else NONE
        yield Change(
            of,
            places.unpack(packed, bool(kind & _AS_BITS)),
            source=source,
            offset=offset,
            holder=holder,
            until_ms=until_ms,
            deadlines_ms=None if of in COME_BACK else instants_ms,
            untils_ms=instants_ms if of in COME_BACK else None,
            traits=traits if retries is None else replace(traits, retries=np.array(retries, np.int64)),
            facts=facts,
        )

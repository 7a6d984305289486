"""Restores the state of a queue shard from its journal at take-over (see `queue_journal`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lapse.core.portions import Portions, in_lots, run_to_end
from lapse.core.queue.change import HANDS_OUT, Change, ChangeKind
from lapse.core.queue.journal import packed_segment
from lapse.core.queue.journal.journal_record import (
    AS_OF,
    KEY,
    NAMED_KEY,
    changes_of,
    restore_head,
    sequence_of,
    sources_of,
)
from lapse.core.queue.rates.counted import parse_batch
from lapse.core.queue.removal.pending_letter import parse_pending_letter
from lapse.core.queue.segments.spill import Segments, SpillStore
from lapse.core.queue.state import QueueState
from lapse.core.repeats import chunk_of

Records = list[tuple[bytes, bytes]]

_CROWDS: Final = (b"s", b"a")
"""Kinds of record that can be very many: scheduled messages and remembered acknowledgments. Any order will do."""


@dataclass(slots=True)
class Restored:
    """The content of the changelog at take-over.

    Attributes:
        state: the shard's state.
        whole_at: by segment index, the key of the whole segment.
        obsolete: keys to delete once the new epoch has begun.
        released: barriers of the last step, which may not have been sent (C35).
        handed_out: deliveries of the last steps, each change with the sequence of its step (C55).
    """

    state: QueueState
    whole_at: dict[int, bytes] = field(default_factory=dict)
    obsolete: list[bytes] = field(default_factory=list)
    released: list[Change] = field(default_factory=list)
    handed_out: list[tuple[int, Change]] = field(default_factory=list)


def restore(items: Iterable[tuple[bytes, bytes]], segments: Segments | None = None) -> Restored:
    """Return the result of `restoring`, computed at once."""
    return run_to_end(restoring(items, segments))


def restoring(items: Iterable[tuple[bytes, bytes]], segments: Segments | None = None) -> Portions[Restored]:
    """Rebuild the state from the latest record of every key.

    An interrupted take-over leaves records of two epochs. Steps, subscriptions and schedule of the lower epoch count
    exactly as long as the higher epoch has not written its first step.

    Args:
        items: the records in any order, iterated once.
        segments: receives the restored segments; None = all stay in memory.

    Raises:
        ValueError: a record has another format than this version writes.
    """
    state = QueueState(segments)
    restored = Restored(state)
    columns: SpillStore = {} if state.segments.spill_store is None else state.segments.spill_store
    found = yield from _sort_records(items, columns, restored.obsolete)
    steps = yield from _restore_separate_records(state, found, restored.obsolete)
    state.pending = dict(sorted(state.pending.items(), key=lambda item: (item[1].at_ms, item[0])))
    if not steps:
        return restored
    sequences = sorted(steps)
    last = steps[sequences[-1]]
    for source in sources_of(last):
        state.sources.add(source)
    state.rewinds.settle_generations()
    for index, (as_of, key) in sorted(found.whole.items()):
        state.adopt(packed_segment.decode(columns[index]))
        state.as_of[index] = as_of
        restored.whole_at[index] = key
        yield
    yield from _apply_steps(restored, steps, sequences)
    restore_head(state, last)
    state.sequence = sequences[-1] + 1
    yield from state.compute_indexes()
    return restored


def _restore_separate_records(state: QueueState, found: _Found, obsolete: list[bytes]) -> Portions[dict[int, bytes]]:
    """Restore the records that are neither steps nor segments; return the steps of the last epoch by sequence.

    Args:
        state: receives what the records hold.
        found: the records of the journal.
        obsolete: receives the keys of all of them, which the new epoch replaces.
    """
    steps: dict[int, bytes] = {}
    epoch = max((key[1:9] for key, _ in found.rest if key[:1] == b"d"), default=b"")
    for key, value in found.rest:
        obsolete.append(key)
        if key[1:9] < epoch:
            continue
        if key[:1] == b"d":
            steps[sequence_of(value)] = value
        else:
            _restore_separate_record(state, key, value)
            yield
    for of in sorted(found.crowds):
        for some in in_lots(found.crowds[of]):
            for key, value in some:
                obsolete.append(key)
                if of >= epoch:
                    _restore_separate_record(state, key, value)
            yield
    return steps


def _apply_steps(restored: Restored, steps: dict[int, bytes], sequences: list[int]) -> Portions[None]:
    """Apply the changes of steps in their order, and note those that may not have reached Kafka."""
    state = restored.state
    state.recovering = True
    for sequence in sequences:
        state.sequence = sequence
        for change in changes_of(steps[sequence]):
            state.apply(change)
            if change.kind is ChangeKind.RELEASED and sequence == sequences[-1]:
                restored.released.append(change)
            elif change.kind in HANDS_OUT:
                restored.handed_out.append((sequence, change))
        state.segments.make_room()
        yield


@dataclass(slots=True)
class _Found:
    """The records of a journal by kind.

    Attributes:
        whole: by segment index, the last step that the segment contains, and its key.
        crowds: records of the kinds in `_CROWDS`, by epoch.
        rest: all other records, by epoch and number.
    """

    whole: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    crowds: dict[bytes, Records] = field(default_factory=dict)
    rest: Records = field(default_factory=list)


def _sort_records(items: Iterable[tuple[bytes, bytes]], columns: SpillStore, obsolete: list[bytes]) -> Portions[_Found]:
    """Store the bytes of each segment's highest epoch in `columns`, and sort the other records by kind."""
    found = _Found()
    for some in in_lots(items):
        for key, value in some:
            if key[:1] in _CROWDS:
                found.crowds.setdefault(key[1:9], []).append((key, value))
                continue
            if key[:1] != b"g":
                found.rest.append((key, value))
                continue
            as_of, index = AS_OF.unpack_from(value)[0], KEY.unpack(key)[2]
            known = found.whole.get(index)
            if known is not None:
                obsolete.append(min(known[1], key))
            if known is None or known[1] < key:
                found.whole[index] = (as_of, key)
                columns[index] = memoryview(value)[AS_OF.size :]
        yield
    found.rest.sort(key=_epoch_and_number)
    return found


def _epoch_and_number(item: tuple[bytes, bytes]) -> bytes:
    key = item[0]
    return key[1:] if key[:1] != b"r" else bytes(8) + key[9:]  # counted deliveries are numbered across epochs


def _restore_separate_record(state: QueueState, key: bytes, value: bytes) -> None:
    """Restore a record that is not a step's or a segment's."""
    match key[:1]:
        case b"c":
            facts = json.loads(value)
            state.apply(Change(ChangeKind.SUBSCRIBED, holder=facts["number"], facts=facts))
        case b"a":
            state.remembered.add(NAMED_KEY.unpack(key)[2:])
        case b"y":
            state.pending[NAMED_KEY.unpack(key)[2:]] = parse_pending_letter(json.loads(value))
        case b"i":
            state.repeats.add(KEY.unpack(key)[2], chunk_of(*json.loads(value)))
        case b"s":
            _, _, source, offset = NAMED_KEY.unpack(key)
            state.scheduled.add_packed(source, offset, value)
        case b"r":
            state.counted.add(KEY.unpack(key)[2], parse_batch(json.loads(value)))
        case b"t":
            state.transfers.add(json.loads(value))
        case b"w":
            state.rewinds.add(json.loads(value))
        case b"h":
            _, _, source, stretch = NAMED_KEY.unpack(key)
            state.rewinds.depart(Change(ChangeKind.DEPARTED, source=source, offset=stretch, facts=json.loads(value)))
        case kind:
            state.ending.restore(kind, value)

"""Journals what the parts of a long command have done so far, so that a crash in between loses no counts (C55, C60).

With each part's step an entry is written: the counts so far, and the outcomes that the part added. The next owner of
the shard reads the command again, does what is left, and answers for all parts. The entries are removed with the
command's last step.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import orjson

from lapse.core.queue.parts_done import PartsDone
from lapse.core.queue.settlement.settlement import Outcome, Result
from lapse.core.shard.changelog import Items

KEY: Final = b"\x00d"
_REST: Final = struct.Struct(">qqq")


class PartsJournal:
    """Journals the parts of the long command of one shard.

    Args:
        epoch: the shard's epoch.
        parts: the results so far.
    """

    def __init__(self, epoch: int, parts: PartsDone) -> None:
        self._epoch = epoch
        self._parts = parts
        self._number = 0
        self._noted = 0
        """How many of the parts' outcomes are in entries."""
        self._keys: list[bytes] = []
        """The keys of the command's entries."""
        self._items: Items = []
        self._left: dict[int, list[tuple[bytes, bytes]]] = {}
        """The entries of earlier epochs, by the command's offset."""

    def recall(self, journal: Mapping[bytes, bytes]) -> None:
        """Find the entries of earlier epochs.

        Args:
            journal: the runtime's keys of the changelog.
        """
        for key in sorted(key for key in journal if key.startswith(KEY)):
            _, offset, _ = _REST.unpack_from(key, len(KEY))
            self._left.setdefault(offset, []).append((key, journal[key]))

    def resume(self, offset: int) -> None:
        """Prepare for a command, or a part of it, of which earlier epochs may have done some parts.

        Args:
            offset: the command's offset.
        """
        if not self._left:
            return
        for before in [one for one in self._left if one <= offset]:
            items = self._left.pop(before)
            if before < offset:  # the command was refused this time
                self._items += [(key, None) for key, _ in items]
                continue
            for key, value in items:
                self._keys.append(key)
                self._take(orjson.loads(value))
            self._noted = len(self._parts.settled)

    def _take(self, part: dict[str, Any]) -> None:
        self._parts.purged = Counter(part["purged"])
        self._parts.skipped, self._parts.settled_to = part["skipped"], part["to"]
        for topic, partition, first, last, *result in part["settled"]:
            # Settled ones have no result: an older version, which may take over meanwhile, knows no others.
            named = Result(result[0]) if result else Result.SETTLED
            self._parts.settled.append(Outcome(topic, partition, first, last, named))

    def note(self, offset: int) -> None:
        """Write an entry for the part that was just done.

        Args:
            offset: the command's offset.
        """
        parts = self._parts
        if not parts.any:
            return
        self._number += 1
        key = KEY + _REST.pack(self._epoch, offset, self._number)
        added = [
            one[:4] if one.result is Result.SETTLED else (*one[:4], one.result.value)
            for one in parts.settled[self._noted :]
        ]
        self._noted = len(parts.settled)
        self._keys.append(key)
        value = {"purged": parts.purged, "skipped": parts.skipped, "to": parts.settled_to, "settled": added}
        self._items.append((key, orjson.dumps(value)))

    def end(self) -> None:
        """Remove the entries of a command that is done."""
        if self._keys:
            self._items += [(key, None) for key in self._keys]
            self._keys, self._noted = [], 0

    def items(self) -> Items:
        """Return the entries and removals of this step."""
        items, self._items = self._items, []
        return items

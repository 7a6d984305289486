"""Candidates: the records that a command may be about, without looking at all records (S6, S11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lapse.core.shard.refused import CommandRefused
from lapse.core.sow import journal
from lapse.core.sow.arrival.arrival import Refused, key_in
from lapse.core.sow.keys.key import NoKey, canonical_key
from lapse.core.sow.removal.deletion import Bookmarks
from lapse.core.sow.state import SowState
from lapse.core.sow.subscriptions.subscription import Predicate
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command

_MOST_DATA: Final = 1_000
"""How many payloads of a query may name records. They are all read in one turn (C60)."""


class Candidates:
    """Finds the records that commands name, or that an index knows.

    Args:
        state: the shard's state.
    """

    __slots__ = ("_settings", "_state")

    def __init__(self, state: SowState) -> None:
        self._state = state
        self._settings = state.settings

    def check_data(self, command: Command) -> None:
        """Refuse payloads as names of records where keys are not in payloads.

        Raises:
            CommandRefused: the command has such payloads.
        """
        if command.data and not self._settings.key:
            raise CommandRefused(
                f"{command.command} by data: the records of this SOW topic have Kafka's keys, which are not in "
                "payloads; name them by keys"
            )

    def named(self, command: Command) -> list[bytes]:
        """Return the journal keys of the records that `keys` or `data` name, without those of other shards (C46).

        Raises:
            CommandRefused: a text is not a key of this SOW topic, or a payload has none.
        """
        self.check_data(command)
        if len(command.data) > _MOST_DATA:
            raise CommandRefused(f"sow takes at most {_MOST_DATA:,} payloads as data; {len(command.data):,} are given")
        fields = self._settings.key
        found: dict[bytes, None] = {}
        for at, text in enumerate(command.data or command.keys):
            try:
                if command.data:
                    found[key_in(text, self._settings)] = None
                else:
                    found[canonical_key(text, fields) if fields else text] = None
            except (Refused, NoKey) as error:
                raise CommandRefused(f"{'data' if command.data else 'keys'}.{at}: {error}") from error
        return [journal.RECORD + key for key in found if self._settings.home.holds(key)]

    def find_indexed(self, compiled: tuple[Predicate, ...]) -> list[bytes] | None:
        """Return the journal keys that a hash index finds for the filters' equalities; None without an index (S11)."""
        if not self._state.hash_index:
            return None
        equalities = [pair for predicate in compiled for pair in getattr(predicate, "equalities", ())]
        found = self._state.hash_index.find(equalities)
        return None if found is None else list(found)

    def offsets(self, texts: Sequence[str]) -> Bookmarks:
        """Return the offsets that bookmarks name, without partitions that this shard never read.

        Raises:
            CommandRefused: a text is no bookmark.
        """
        ranges: dict[int, list[tuple[int, int]]] = {}
        for text in texts:
            try:
                named = BookmarkRange.of_records(text)
            except ValueError as error:
                raise CommandRefused(str(error)) from error
            source = self._state.find_source(named.topic, named.partition)
            if source is not None:
                ranges.setdefault(source, []).append((named.first, named.last))
        return Bookmarks(ranges)

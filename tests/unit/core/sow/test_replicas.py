"""Deployments that replicate a SOW topic hold the same records once the links have caught up (S10, C56).

Three shards, and links as `lapse replicate` makes them, which may be away while Kafka compacts what they read. Clocks
of deployments may be apart, by hours too. Several updates may share a millisecond, at one deployment and at several.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.core.sow.arrival.origin import bookmark_of, path_of
from lapse.core.sow.keys.field_path import parse as path
from lapse.core.sow.records.record import facts_of, headers_of, payload_of
from lapse.core.sow.step import Step
from lapse.replication.translation import Translation, Upstream
from support.suite.at_length import examples
from unit.core.sow.make import Desk, T, shard_of, state_records

SIDES, KEYS = range(3), range(3)
TURN = 30
"""A turn of all deployments, ms."""

AWAY_MS = 60_000
HOURS_MS = 3 * 3_600_000
LINKS = {
    "all": [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)],
    "ring": [(0, 1), (1, 2), (2, 0)],
    "chain": [(0, 1), (1, 0), (1, 2), (2, 1)],
}


class Replica:
    """One deployment: a shard, and the compacted topic that it writes."""

    def __init__(self, number: int, keys_in_payloads: bool, ahead_ms: int) -> None:
        """Make a deployment, whose clock is `ahead_ms` ahead."""
        self.name, self._several = "ABC"[number], keys_in_payloads
        more = {"key": (path("/k"),)} if keys_in_payloads else {}
        self._desk = Desk(shard_of(remembers_removed=True, tombstone_ms=10 * HOURS_MS, **more))
        self._ahead_ms = ahead_ms
        self.compacted: list[Upstream] = []
        self.turn = self._acts = 0
        self._latest = dict.fromkeys(KEYS, -1)

    @property
    def at(self) -> int:
        return TURN * self.turn + self._ahead_ms

    def until(self, turn: int) -> None:
        """Let time pass up to a turn."""
        self.turn = turn
        self._note(self._desk.advance(self.at))

    def act(self, what: str, key: int, delay: int) -> None:
        """Do something with a key. It counts here, whatever other deployments said of the key (S10)."""
        self._do(what, key, delay)
        if what in ("put", "delete", "sow_delete", "delta") and self._latest[key] < self.at:
            held = [one for one in self._desk.select(self.at) if one["k"] == key]
            mine = [self._acts] if what == "delta" else [f"{self.name}{self._acts}"] if what == "put" else []
            assert [one[self.name if what == "delta" else "by"] for one in held] == mine
        self._latest[key] = max(self._latest[key], self.at + (TURN * delay if what == "scheduled" else 0))

    def _do(self, what: str, key: int, delay: int) -> None:
        record_key = self._record_key(key)
        self._acts += 1
        payload: dict[str, object] | None = {"k": key, "by": f"{self.name}{self._acts}"}
        headers: dict[str, object] = {}
        at = self.at
        if what == "sow_delete":
            self._note(self._desk.ask("sow_delete", self.at, keys=(record_key,)))
            return
        if what == "crash":
            self._note(self._desk.crash(self.at))
            return
        if what == "delete":
            payload = None
        elif what == "short":
            headers = {"lapse_ttl_ms": TURN * delay}
        elif what == "over":
            headers = {"lapse_expires_at_ms": 1}
        elif what == "scheduled":
            headers = {"lapse_enqueue_at_ms": T + self.at + TURN * delay}
        elif what == "delta":
            payload, headers = {"k": key, self.name: self._acts}, {"lapse_command": "delta"}
        elif what == "behind":
            at -= TURN * delay
        partition = delay % 2 if self._several else key
        named = record_key if payload is None or not self._several else None
        self._note(self._desk.put(named, payload, at, partition=partition, **headers))

    def bring(self, other: Replica, rows: Sequence[Upstream]) -> None:
        """Take what a link brings."""
        translation = Translation(other.name, self.name)
        for upstream in rows:
            row = translation.translate(upstream, T + TURN * self.turn)
            if row is not None:
                partition = next(key for key in KEYS if self._record_key(key) == row.key)
                headers = {name.replace("-", "_"): value for name, value in row.headers}
                raw = row.value is not None
                self._note(self._desk.put(row.key, row.value, self.at, partition=partition, raw=raw, **headers))

    def records(self) -> list[str]:
        return sorted(map(json.dumps, self._desk.select(self.at)))

    def _record_key(self, key: int) -> bytes:
        return b"[%d]" % key if self._several else b"%d" % key

    def _note(self, step: Step) -> None:
        for key, entry, left in state_records(step):
            headers: list[tuple[str, bytes | None]] = []
            if entry is not None:
                facts, origin = facts_of(entry), path_of(headers_of(entry))
                if origin:
                    headers.append(("lapse-origin-bookmark", bookmark_of(headers_of(entry))))
                bookmark = self._desk.shard.state.bookmark(facts.source, facts.offset)
                headers.append(("lapse-bookmark", str(bookmark).encode()))
                headers.append(("lapse-timestamp-ms", b"%d" % facts.timestamp_ms))
                if facts.deadline_ms != NEVER:
                    headers.append(("lapse-expires-at-ms", b"%d" % facts.deadline_ms))
            else:
                assert left is not None
                origin = left.path
                headers.append(("lapse-operation", left.reason.encode()))
                headers.append(("lapse-timestamp-ms", b"%d" % left.timestamp_ms))
                if left.unwritten:
                    headers.append(("lapse-unwritten", b"true"))
                if left.bookmark:
                    headers.append(("lapse-origin-bookmark", left.bookmark))
            if origin:
                headers.append(("lapse-origin", origin))
            payload = None if entry is None else payload_of(entry)
            self.compacted.append(Upstream(key, payload, headers, T + TURN * self.turn))


ACTS = (
    *("put", "put", "behind", "delete", "sow_delete", "short", "over", "scheduled", "delta", "crash"),
    *("carry", "carry", "carry"),
)
Act = tuple[str, int, int, int]
"""What, at which deployment, with which key, and with which delay. `turn` lets time pass."""

NEXT: list[Act] = [("turn", 0, 0, 1)]


@pytest.mark.feature("S10", "C56", "C46", "C47", "C88")
@settings(max_examples=examples(600))
@given(
    st.lists(
        st.tuples(
            st.sampled_from((*ACTS, *["turn"] * 6)), st.sampled_from(SIDES), st.sampled_from(KEYS), st.integers(1, 5)
        ),
        max_size=60,
    ),
    st.sampled_from(sorted(LINKS)),
    st.booleans(),
    st.booleans(),
    st.tuples(*[st.sampled_from([0, 10, 4 * TURN, HOURS_MS])] * 3),
)
@example(  # a delta here replaces what a link brought to the same partition, from where the clock is ahead
    acts=[
        *(("put", 0, 0, 1), *NEXT, ("carry", 0, 0, 3), *NEXT, ("delta", 1, 0, 1), *NEXT, ("carry", 0, 0, 1)),
        ("put", 2, 0, 2),
    ],
    links="ring",
    keys_in_payloads=True,
    is_long=False,
    ahead_ms=(0, 4 * TURN, 10),
)
@example(  # two producers' clocks are apart by little
    acts=[("put", 0, 0, 1), ("behind", 0, 0, 1)],
    links="all",
    keys_in_payloads=False,
    is_long=False,
    ahead_ms=(0, 0, 0),
)
@example(  # one of two updates in one millisecond is over where the clock is ahead, and its end comes by another way
    acts=[("short", 2, 1, 3), ("carry", 2, 0, 3), ("behind", 2, 1, 3), ("carry", 0, 0, 5)],
    links="all",
    keys_in_payloads=False,
    is_long=False,
    ahead_ms=(4 * TURN, 0, 0),
)
def test_whatever_happens_all_hold_the_same_in_the_end(
    acts: list[Act], links: str, keys_in_payloads: bool, is_long: bool, ahead_ms: tuple[int, int, int]
) -> None:
    sides = [Replica(number, keys_in_payloads, ahead_ms[number]) for number in SIDES]
    read = dict.fromkeys(LINKS[links], 0)

    def carry(link: tuple[int, int], turn: int) -> bool:
        source, target = (sides[number] for number in link)
        for side in (source, target):
            side.until(turn)
        rows = source.compacted[read[link] :]
        read[link] += len(rows)
        # Kafka may have removed what was replaced ten seconds ago.
        old = T + TURN * turn - 10_000
        last = {row.key: at for at, row in enumerate(rows) if row.written_at_ms <= old}
        target.bring(source, [row for at, row in enumerate(rows) if at >= last.get(row.key, 0)])
        return bool(rows)

    turn = 1
    for what, number, key, delay in acts:
        if what == "turn":
            turn += 1
        elif what == "carry":
            carry(LINKS[links][delay % len(read)], turn)
        else:
            sides[number].until(turn)
            sides[number].act(what, key, delay)
    # A deadline stated where the clock is ahead comes later elsewhere.
    for wait_ms in (AWAY_MS if is_long else 10 * TURN, 2 * HOURS_MS):
        turn += wait_ms // TURN
        for side in sides:
            side.until(turn)
        while sum(carry(link, turn) for link in read):
            pass
    assert sides[0].records() == sides[1].records() == sides[2].records()

"""Message ids of a SOW topic: a repeat within the window is dropped and told, by record timestamps, across restarts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER, Expiration
from lapse.core.shard.event import EventKind
from lapse.core.sow.keys.field_path import parse as path
from lapse.core.sow.keys.home import Home
from lapse.core.sow.records.record import payload_of
from lapse.core.sow.settings import SowSettings
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import Step
from unit.core.sow.make import Arrived

pytestmark = pytest.mark.feature("X6", "C43")

WINDOW_MS = 1_000


class Topic:
    """A shard, and the latest value of every key of its journal."""

    def __init__(self, **settings) -> None:
        self.settings = SowSettings(
            name="prices", expiration=Expiration(True), **{"dedup_window_ms": WINDOW_MS, **settings}
        )
        self.shard = SowShard(self.settings)
        self.journal: dict[bytes, bytes] = {}

    def read(self, *records: Arrived, topic: str = "t", partition: int = 0) -> list[int]:
        """Take in one batch; returns the offsets of those that were told to be repeats."""
        repeated, rest = [], list(records)
        while rest:
            step = Step()
            del rest[: self.shard.arrive(topic, partition, rest, step)]
            for key, value in step.changes.items():
                self.journal.pop(key, None)
                if value is not None:
                    self.journal[key] = value
            repeated += [one.messages.bookmark.offset for one in step.events if one.kind is EventKind.REPEATED]
        return repeated

    def restart(self) -> None:
        self.shard = SowShard(self.settings)
        self.shard.restore(sorted(self.journal.items(), reverse=True))

    @property
    def payloads(self) -> dict[bytes, bytes]:
        return {name[1:]: payload_of(entry) for name, entry in self.shard.state.entries.items()}


def record(offset: int, at_ms: int, name: str | None, key: str = "k", value: bytes | None = None, **headers) -> Arrived:
    ids = [] if name is None else [("lapse-message-id", name.encode())]
    others = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Arrived(offset, at_ms, key.encode(), b"%d" % offset if value is None else value, [*ids, *others])


def test_a_repeat_changes_nothing_and_is_reported_whatever_its_key_says():
    topic = Topic()
    batch = [record(0, 5_000, "a"), record(1, 5_000, None), record(2, 5_000, "a"), record(3, 5_000, "b", "l")]
    assert topic.read(*batch) == [2]
    assert topic.payloads == {b"k": b"1", b"l": b"3"}
    assert topic.read(record(4, 5_000 + WINDOW_MS - 1, "b", "m"), record(5, 5_999, "c", "m")) == [4]
    assert topic.payloads[b"m"] == b"5"
    assert topic.read(record(6, 5_000 + WINDOW_MS, "a")) == []
    assert topic.payloads[b"k"] == b"6"


def test_deltas_and_deletes_have_ids_too_and_a_repeat_does_not_restart_the_lifespan():
    topic = Topic()
    assert topic.read(record(0, 5_000, "a", value=b'{"x": 1}', lapse_ttl_ms=b"700")) == []
    delta = {"value": b'{"y": 2}', "lapse_command": b"delta", "lapse_ttl_ms": b"900"}
    assert topic.read(record(1, 5_100, "b", **delta), record(2, 5_300, "b", **delta)) == [2]
    assert topic.shard.next_due_ms() < NEVER
    step = Step()
    topic.shard.advance(6_000, step)
    assert topic.payloads == {}
    topic.read(record(3, 6_100, "new"), Arrived(4, 6_200, b"k", None, [("lapse-message-id", b"gone")]))
    assert topic.payloads == {}
    assert topic.read(record(5, 6_300, None), Arrived(6, 6_400, b"k", None, [("lapse-message-id", b"gone")])) == [6]
    assert topic.payloads == {b"k": b"5"}


@pytest.mark.parametrize(
    "dead",
    [
        {"lapse_ttl_ms": b"soon"},
        {"lapse_expires_at_ms": b"4000"},
        {"lapse_command": b"merge"},
        {"lapse_command": b"delta", "value": b"[1]"},
    ],
)
def test_what_is_dead_on_arrival_does_not_occupy_its_id(dead):
    topic = Topic()
    topic.read(record(0, 5_000, None, value=b'{"a": 1}'))
    assert topic.read(record(1, 5_000, "a", **dead), record(2, 5_001, "a", value=b"{}")) == []
    assert topic.payloads == {b"k": b"{}"}


def test_ids_are_of_their_partition_and_forgotten_with_the_window():
    topic = Topic()
    topic.read(record(0, 5_000, "a"))
    assert topic.read(record(0, 5_000, "a"), partition=1) == []
    topic.read(record(1, 9_000, None), partition=1)
    assert topic.read(record(1, 5_500, "a")) == [1], "another partition's time is not this one's"
    topic.read(record(2, 9_000, None), record(3, 10_000, None))
    assert topic.shard.state.repeats.chunks, "a leap does not tell how late it is"
    for number in range(20):
        topic.read(record(4 + number, 10_100 + 100 * number, None))
        topic.read(record(2 + number, 9_100 + 100 * number, None), partition=1)
    assert not topic.shard.state.repeats.chunks
    assert not [key for key in topic.journal if key[:1] == b"i"]
    assert Topic(dedup_window_ms=0).read(record(0, 5_000, "a"), record(1, 5_000, "a")) == []


@pytest.mark.feature("C46")
def test_shards_that_share_partitions_find_the_same_repeats_and_one_tells():
    shards = [Topic(key=(path("/k"),), home=Home(number, 3)) for number in range(3)]
    records = [
        record(number, 5_000 + number, "ab"[number % 2] if number < 8 else f"{number}", value=b'{"k": %d}' % number)
        for number in range(30)
    ]
    published = [shard.read(*records, partition=1) for shard in shards]
    assert published == [[], [2, 3, 4, 5, 6, 7], []]
    kept = [payload for shard in shards for payload in shard.payloads.values()]
    assert sorted(kept) == sorted(one.value for one in records if one.offset < 2 or one.offset >= 8)


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([*"abc", None]), st.sampled_from([0, 1, 400, 999, 1_000, 1_500])), max_size=5
        ),
        max_size=8,
    ),
    st.sets(st.integers(0, 7)),
    st.sampled_from([1, 300, 1 << 22]),
)
def test_whatever_comes_however_it_is_cut_a_repeat_is_what_came_within_the_window(batches, restarts, max_step_bytes):
    topic, now_ms, offset = Topic(max_step_bytes=max_step_bytes), 5_000, 0
    seen: dict[str, int] = {}
    for number, batch in enumerate(batches):
        records, expected = [], []
        for name, wait_ms in batch:
            now_ms += wait_ms
            records.append(record(offset, now_ms, name))
            if name is not None and now_ms - seen.get(name, -WINDOW_MS) < WINDOW_MS:
                expected.append(offset)
            elif name is not None:
                seen[name] = now_ms
            offset += 1
        assert topic.read(*records) == expected
        if number in restarts:
            topic.restart()

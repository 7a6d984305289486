"""Message ids: a repeat within the window is dropped, by record timestamps, across restarts."""

import json
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.reason import UNCONFIRMED
from lapse.core.repeats import Chunk, Repeats

pytestmark = pytest.mark.feature("X6", "C43")

WINDOW_MS = 1_000


class Queue:
    """A shard, and the latest value of every key of its changelog."""

    def __init__(self, **settings: Any) -> None:
        self.settings = QueueSettings(
            name="q", expiration=Expiration(True), **{"dedup_window_ms": WINDOW_MS, **settings}
        )
        self.shard = QueueShard(self.settings)
        self.epoch = 1
        self.journal = QueueJournal(self.shard.state, 1)
        self.log: dict[bytes, bytes] = {}
        self.write(self.journal.begin())
        self.offsets: dict[str, int] = {}

    def write(self, items: list[tuple[bytes, bytes | None]]) -> None:
        for key, value in items:
            self.log.pop(key, None)
            if value is not None:
                self.log[key] = value

    def read(self, *ids: str | None, at_ms: int, topic: str = "t", clock_ms: int = 0, **headers: bytes) -> list[int]:
        """Take in one batch, one record per id; returns which of the batch were repeats."""
        first = self.offsets.get(topic, 0)
        self.offsets[topic] = first + len(ids)
        records = [
            SimpleNamespace(
                offset=first + at,
                timestamp=at_ms,
                key=None,
                value=b"",
                headers=[
                    *([] if name is None else [("lapse-message-id", name.encode())]),
                    *((key.replace("_", "-"), value) for key, value in headers.items()),
                ],
            )
            for at, name in enumerate(ids)
        ]
        step = Step()
        self.shard.arrive(topic, 0, records, step, clock_ms)
        if step.changes or step.removals:
            self.write(self.journal.encode(step))
        emitted = [one.messages.offsets.tolist() for one in step.events if one.messages and one.kind == "repeated"]
        return [offset - first for offsets in emitted for offset in offsets]

    def restart(self) -> None:
        restored = restore(self.log.items())
        self.epoch += 1
        self.shard = QueueShard(self.settings, restored.state)
        self.journal = QueueJournal(restored.state, self.epoch, restored)
        self.write(self.journal.begin())

    @property
    def depth(self) -> int:
        return self.shard.depth()["depth"]


def test_a_repeat_is_dropped_and_reported_and_the_rest_enters():
    queue = Queue()
    assert queue.read("a", "b", None, "a", "", None, at_ms=5_000) == [3]
    assert queue.read("b", "c", at_ms=5_000 + WINDOW_MS - 1) == [0]
    assert queue.depth == 6


def test_the_window_ends_on_its_millisecond_and_counts_from_what_entered():
    queue = Queue()
    assert queue.read("a", at_ms=5_000) == []
    assert queue.read("a", at_ms=5_000 + WINDOW_MS - 1) == [0]
    assert queue.read("a", at_ms=5_000 + WINDOW_MS) == []
    assert queue.read("a", at_ms=5_000 + 2 * WINDOW_MS - 1) == [0]


def test_the_window_has_two_sides():
    """A copy of old records with their own timestamps repeats nothing of today."""
    queue = Queue()
    assert queue.read("a", at_ms=50_000) == []
    assert queue.read("a", at_ms=50_000 - WINDOW_MS + 1) == [0]
    assert queue.read("a", at_ms=50_000 - WINDOW_MS) == []
    queue.restart()
    assert queue.read("a", at_ms=50_000) == [0], "the earlier one does not replace the later one"
    assert queue.read("a", at_ms=50_000 - 2 * WINDOW_MS + 1) == [0]
    assert queue.depth == 2


def test_the_window_has_two_sides_in_a_batch():
    queue = Queue()
    stamps = {0: 50_000, 1: 40_000, 2: 50_000 - WINDOW_MS + 1, 3: 40_000 + WINDOW_MS - 1, 4: 45_000}
    records = [
        SimpleNamespace(offset=offset, timestamp=at_ms, key=None, value=b"", headers=[("lapse-message-id", b"a")])
        for offset, at_ms in stamps.items()
    ]
    step = Step()
    queue.shard.arrive("t", 0, records, step)
    assert [one.messages.offsets.tolist() for one in step.events if one.kind == "repeated"] == [[2, 3]]
    assert queue.depth == 3


def test_each_partition_and_topic_has_ids_of_its_own():
    queue = Queue()
    assert queue.read("a", at_ms=5_000) == []
    assert queue.read("a", at_ms=5_000, topic="other") == []
    assert queue.depth == 2


@pytest.mark.parametrize("headers", [{"lapse_ttl_ms": b"x"}, {"lapse_expires_at_ms": b"1"}])
def test_what_is_dead_on_arrival_does_not_occupy_its_id(headers: dict[str, bytes]):
    queue = Queue()
    assert queue.read("a", at_ms=5_000, **headers) == []
    assert queue.read("a", at_ms=5_001) == []
    assert queue.depth == 1
    assert queue.read("a", at_ms=5_002, **headers) == [0]


def test_scheduled_messages_occupy_their_ids_and_are_dropped_as_repeats():
    queue = Queue()
    assert queue.read("a", at_ms=5_000, lapse_enqueue_at_ms=b"9000") == []
    assert queue.read("a", at_ms=5_100, lapse_enqueue_at_ms=b"9000") == [0]
    assert queue.shard.depth()["scheduled"] == 1


@pytest.mark.feature("C84")
def test_the_letter_of_an_unconfirmed_record_says_so_though_a_repeat_arrives_with_it():
    """Redrive leaves such a letter. Without that mark it would deliver the message on both sides."""
    queue, step = Queue(dead_letter_topic="dlq.q"), Step()
    put = [("lapse-transfer", b"q/t"), ("lapse-expires-at-ms", b"1")]
    headers = [put, [("lapse-message-id", b"a")], [("lapse-message-id", b"a")]]
    records = [
        SimpleNamespace(offset=at, timestamp=5, key=None, value=b"", headers=one) for at, one in enumerate(headers)
    ]
    queue.shard.arrive("t", 0, records, step)
    (removal,) = step.removals
    assert (removal.messages.offsets.tolist(), removal.detail) == ([0], UNCONFIRMED)


def test_what_was_redriven_for_another_queue_is_none_of_ours():
    queue = Queue()
    assert queue.read("a", at_ms=5_000, lapse_redrive_queue=b"other") == []
    assert queue.read("a", at_ms=5_000, lapse_redrive_queue=b"q") == []
    assert queue.depth == 1


@pytest.mark.feature("Q16")
def test_ids_survive_restarts_and_are_forgotten_in_time():
    queue = Queue()
    long = "x" * 200
    queue.read("a", "\x00é", long, at_ms=5_000)
    for _ in range(3):
        queue.restart()
        assert queue.read("a", "\x00é", long, at_ms=5_500) == [0, 1, 2]
    for at_ms in range(5_500, 6_600, 100):
        queue.read(None, at_ms=at_ms)
    queue.read("b", at_ms=6_600)
    assert len(queue.shard.state.repeats.chunks) == 2, "after a restart they stay for another window"
    for at_ms in range(6_700, 7_600, 100):
        queue.read(None, at_ms=at_ms)
    assert len(queue.shard.state.repeats.chunks) == 1
    for at_ms in range(20_000, 22_100, 100):
        queue.read(None, at_ms=at_ms)
    assert not [key for key in queue.log if key[:1] == b"i"]
    assert not queue.shard.state.repeats._seen
    queue.restart()
    assert queue.read("a", "b", at_ms=22_001) == []


@pytest.mark.feature("C6", "Q16")
@pytest.mark.parametrize("wrong_ms", [-3_600_000, 3_600_000])
def test_a_producer_with_a_wrong_clock_makes_no_id_of_others_outdated(wrong_ms: int):
    queue, now_ms = Queue(), 5_000_000
    queue.read(None, at_ms=now_ms, clock_ms=now_ms)
    queue.read("wrong", None, at_ms=now_ms + wrong_ms, clock_ms=now_ms)
    queue.read("right", at_ms=now_ms, clock_ms=now_ms)
    queue.read("wrong as well", at_ms=now_ms + wrong_ms, clock_ms=now_ms)
    queue.read(None, at_ms=now_ms + 1, clock_ms=now_ms + 1)
    for restart in range(2):
        if restart:
            queue.restart()
        assert queue.read("right", at_ms=now_ms + WINDOW_MS - 1, clock_ms=now_ms + WINDOW_MS - 1) == [0]
        assert queue.read("wrong", at_ms=now_ms + wrong_ms + 9, clock_ms=now_ms + WINDOW_MS - 1) == [0]
    for after_ms in range(WINDOW_MS, 4 * WINDOW_MS, WINDOW_MS // 10):
        queue.read(None, at_ms=now_ms + after_ms, clock_ms=now_ms + after_ms)
    assert not queue.shard.state.repeats.chunks, "nor does it keep them"


@pytest.mark.feature("C6", "Q16")
@pytest.mark.parametrize("behind_ms", [3_600_000, WINDOW_MS // 2])
@pytest.mark.parametrize("restarts", [0, 1])
def test_ids_of_a_clock_behind_are_kept_though_it_is_the_first_that_is_read(behind_ms: int, restarts: int):
    """At its start a shard does not know how far a source has come. A clock behind does not tell it."""
    queue, now_ms = Queue(), 5_000_000
    for at_ms in range(now_ms - 2 * WINDOW_MS, now_ms, WINDOW_MS):
        queue.read(None, at_ms=at_ms, clock_ms=at_ms)
    for _ in range(restarts):
        queue.restart()
    if not restarts:
        queue = Queue()
    queue.read("behind", at_ms=now_ms - behind_ms, clock_ms=now_ms)
    queue.read("behind as well", at_ms=now_ms - behind_ms + 1, clock_ms=now_ms + 1)
    queue.read("right", at_ms=now_ms + 2, clock_ms=now_ms + 2)
    for after_ms in (3, WINDOW_MS - 1):
        at_ms = now_ms + after_ms
        queue.read(None, at_ms=at_ms, clock_ms=at_ms)
        assert queue.read("behind", at_ms=at_ms - behind_ms, clock_ms=at_ms) == [0]
        assert queue.read("behind as well", at_ms=at_ms - behind_ms, clock_ms=at_ms) == [0]
        queue.restart()
    for after_ms in range(WINDOW_MS, 4 * WINDOW_MS, WINDOW_MS // 10):
        queue.read(None, at_ms=now_ms + after_ms, clock_ms=now_ms + after_ms)
    assert not queue.shard.state.repeats.chunks, "nor does it keep them"


@pytest.mark.feature("C6", "Q16")
@pytest.mark.parametrize("apart_ms", [3_600_000, WINDOW_MS * 9 // 10])
@pytest.mark.parametrize("producers", [3, 5])
def test_ids_of_several_clocks_are_kept_whichever_is_read_first(apart_ms: int, producers: int):
    """After a start each clock is a leap from the one before, and a leap does not tell how late it is."""
    queue, now_ms = Queue(), 50_000_000
    queue.read(None, at_ms=now_ms - 10 * apart_ms, clock_ms=now_ms)
    queue.restart()
    behind_ms = {f"{number}": number * apart_ms for number in reversed(range(producers))}
    for name, by_ms in behind_ms.items():
        assert queue.read(name, at_ms=now_ms - by_ms, clock_ms=now_ms) == []
    for after_ms in range(50, WINDOW_MS, 50):
        for name, by_ms in behind_ms.items():
            at_ms = now_ms + after_ms
            assert queue.read(name, at_ms=at_ms - by_ms, clock_ms=at_ms) == [0], (name, after_ms)
    for after_ms in range(WINDOW_MS, 4 * WINDOW_MS, 100):
        queue.read(None, at_ms=now_ms + after_ms, clock_ms=now_ms + after_ms)
    assert not queue.shard.state.repeats.chunks, "nor does it keep them"


def test_a_source_that_comes_forward_by_leaps_only_does_not_keep_all_its_ids():
    queue = Queue()
    for number in range(50):
        queue.read(f"{number}", at_ms=5_000 + number * 2 * WINDOW_MS)
        assert len(queue.shard.state.repeats.chunks) <= 9


@pytest.mark.slow
def test_ten_thousand_ids_of_any_kind_fit_into_a_step():
    for kind in ('{:05}"', "\x00{:05}" + "é" * 30, "{:05}" + "x" * 35, "{:05}" + "y" * 200, "#{:05}"):
        queue = Queue()
        assert queue.read(*(kind.format(number) for number in range(10_000)), at_ms=5_000) == []
        (chunk,) = [value for key, value in queue.log.items() if key[:1] == b"i"]
        assert len(chunk) < 700_000
        assert queue.read(kind.format(7), at_ms=5_001) == [0]


def test_a_window_of_nothing_drops_nothing():
    queue = Queue(dedup_window_ms=0)
    assert queue.read("a", "a", at_ms=5_000) == []
    assert not queue.shard.state.repeats.chunks


def test_without_a_timestamp_the_latest_one_counts():
    queue = Queue()
    assert queue.read("a", at_ms=-1) == []
    assert queue.read("a", at_ms=-1) == [0]


def test_the_window_of_a_batch_is_that_of_its_last_record():
    queue = Queue()
    queue.read("a", at_ms=5_000)
    for first in range(1, 15, 2):
        plain = [
            SimpleNamespace(offset=offset, timestamp=at_ms, key=None, value=b"", headers=[])
            for offset, at_ms in ((first, 5_001), (first + 1, 5_000 + (first + 1) // 2 * WINDOW_MS))
        ]
        queue.shard.arrive("t", 0, plain, Step())
    assert not queue.shard.state.repeats.chunks


@pytest.mark.parametrize("name", ["plain", 'quo"te', "back\\slash", "#hash", "\x07", "x" * 40, "x" * 41, "é"])
def test_an_id_takes_no_more_of_the_journal_than_its_digest(name: str):
    queue = Queue()
    assert queue.read(name, at_ms=5_000) == []
    ((kept, _),) = queue.shard.state.repeats.chunks[0].ids
    assert (kept == name) == (name in ("plain", "x" * 40))
    assert len(json.dumps(kept)) <= 42
    assert queue.read(name, kept, at_ms=5_001) == ([0, 1] if kept == name else [0])


@pytest.mark.feature("C60")
def test_ids_of_a_source_that_is_silent_are_not_looked_at_for_others() -> None:
    """Topics of earlier days, which a pattern matches, leave the ids of their last minutes."""
    repeats = Repeats()
    for number in range(100):
        repeats.add(number, Chunk(number % 2, 10 * number, ((str(number), 10 * number),)))

    class Looked(dict[int, Chunk]):
        at: ClassVar[list[int]] = []

        def __getitem__(self, number: int) -> Chunk:
            self.at.append(number)
            return super().__getitem__(number)

        def items(self) -> Any:
            raise AssertionError("all are looked at")

    for now_ms in range(0, 1_400, 50):
        assert not list(repeats.outdated(0, now_ms, 450)) or now_ms >= 900
    repeats.chunks, Looked.at[:] = Looked(repeats.chunks), []
    assert list(repeats.outdated(0, 1_350, 450)) == [*range(0, 92, 2)]
    assert Looked.at == [*range(0, 94, 2)]
    for number in range(100):
        repeats.forget(number)
    assert not repeats.chunks
    assert not repeats._numbers
    assert list(repeats.outdated(1, 500, 450)) == []

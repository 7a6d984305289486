"""Acknowledgments are joined into ranges, and sent when they are enough or old enough."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.protocol.answer import Answer, Settlement
from lapse.protocol.bookmark import Bookmark, BookmarkRange, ranges
from lapse.protocol.command import Command
from lapse.protocol.repetition import bears_repetition
from lapse_client.delivery.delivery import Delivery
from lapse_client.delivery.lot import SingleLot
from lapse_client.error import AlreadySettled
from lapse_client.session.shard import Shard
from lapse_client.subscriber.acknowledgments import Acknowledgments
from lapse_client.subscriber.settlement import MOST_RANGES, SettlementBatch, chunks, results

places = st.tuples(st.sampled_from(["a", "b-1.x"]), st.integers(0, 3), st.integers(0, 40), st.integers(1, 3))


class Message:
    """What a delivery needs of a Kafka message."""

    def headers(self) -> list[tuple[str, bytes]]:
        return []

    def set_headers(self, headers: object) -> None:
        pass

    def key(self) -> bytes | None:
        return None

    value = key


def delivery(shard: Shard, offset: int, kind: bytes = b"delivery") -> Delivery:
    fields = {
        "lapse-kind": kind,
        "lapse-bookmark": b"t:%d:%d" % (shard.partition, offset),
        "lapse-delivery-count": b"1",
    }
    return Delivery(SingleLot(None, shard, Message(), fields), 0)


@pytest.mark.feature("Q8", "C13")
@given(st.lists(places, unique=True))
def test_ranges_name_exactly_what_was_added(added: list[tuple[str, int, int, int]]) -> None:
    batch = SettlementBatch()
    for topic, partition, offset, count in added:
        batch.add(f"{topic}:{partition}".encode(), str(count).encode(), offset)
    assert batch.size == len(added)
    found = [BookmarkRange.parse(text) for text in batch.take()]
    expected = {(Bookmark(topic, partition, offset), count) for topic, partition, offset, count in added}
    assert {(place, one.delivery_count) for one in found for place in one} == expected
    assert sum(len(one) for one in found) == len(added)
    assert len(found) <= len(ranges(expected))
    assert batch.take() == []


@pytest.mark.feature("Q8")
def test_a_repeated_bookmark_is_named_once() -> None:
    batch = SettlementBatch()
    for offset in (4, 3, 3, 5, 9):
        batch.add(b"t:0", b"", offset)
    assert batch.take() == ["t:0:3-5", "t:0:9"]


@pytest.mark.feature("Q8")
def test_many_ranges_go_into_several_commands() -> None:
    texts = [str(number) for number in range(MOST_RANGES * 2 + 1)]
    assert [len(some) for some in chunks(texts)] == [MOST_RANGES, MOST_RANGES, 1]


@pytest.mark.feature("X3")
def test_acknowledgments_are_sent_when_they_are_enough() -> None:
    sent: list[tuple[int, list[str], int]] = []
    shards = [Shard(0, "q", 0), Shard(1, "q", 1)]
    waiting = Acknowledgments(
        shards, lambda shard: 3, lambda shard, some, leases: sent.append((shard.index, some, leases.total()))
    )
    waiting.add([delivery(shards[0], offset) for offset in (1, 2)])
    waiting.add([delivery(shards[1], 7)])
    assert sent == []
    waiting.add([delivery(shards[0], 3)])
    assert sent == [(0, ["t:0:1-3#1"], 3)]
    waiting.flush_older(60_000)
    assert len(sent) == 1
    waiting.flush_older(0)
    assert sent[1:] == [(1, ["t:1:7#1"], 1)]


@pytest.mark.feature("X3", "Q5")
def test_nothing_is_sent_after_the_close() -> None:
    """An acknowledgment behind `unsubscribe` would come too late: its message has returned."""
    about_to_send, go_on = threading.Event(), threading.Event()
    done: list[str] = []

    def send(*_: object) -> None:
        about_to_send.set()
        go_on.wait(20)
        done.append("sent")

    waiting = Acknowledgments([Shard(0, "q", 0)], lambda _: 9, send)
    waiting.add([delivery(Shard(0, "q", 0), 1)])
    flushing = threading.Thread(target=waiting.flush_all)
    closing = threading.Thread(target=lambda: (waiting.close(), done.append("closed")))
    flushing.start()
    assert about_to_send.wait(20)
    closing.start()
    closing.join(0.1)
    go_on.set()
    for thread in (flushing, closing):
        thread.join(20)
    assert done == ["sent", "closed"]


@pytest.mark.feature("X3", "Q12")
def test_a_barrier_is_not_acknowledged() -> None:
    sent: list[object] = []
    shard = Shard(0, "q", 0)
    waiting = Acknowledgments([shard], lambda _: 1, lambda *some: sent.append(some))
    waiting.add([delivery(shard, 1, b"barrier")])
    waiting.flush_all()
    assert sent == []


@pytest.mark.feature("X3")
def test_a_delivery_is_settled_once() -> None:
    shard = Shard(0, "q", 0)
    waiting = Acknowledgments([shard], lambda _: 9, lambda *_: None)
    one = delivery(shard, 1)
    waiting.add([one])
    with pytest.raises(AlreadySettled, match="t:0:1 is settled already"):
        waiting.add([one])


@pytest.mark.feature("C16")
def test_an_answer_tells_the_result_of_each_range() -> None:
    answer = Answer(
        id="1",
        command="cancel",
        status="ok",
        settlements=(Settlement(bookmarks="t:0:1-2", result="settled"), Settlement(bookmarks="t:0:3", result="stale")),
    )
    answered = results(answer)
    assert [(len(one.messages), one.result, one.settled) for one in answered] == [
        (2, "settled", True),
        (1, "stale", False),
    ]


@pytest.mark.feature("C55")
@pytest.mark.parametrize(
    ("fields", "safe"),
    [
        ({"command": "acknowledge", "bookmarks": ["t:0:1"]}, True),
        ({"command": "expire", "bookmarks": ["t:0:1-5"]}, True),
        ({"command": "cancel", "bookmarks": ["t:0:1#1@3", "t:0:2#1"]}, True),
        ({"command": "cancel", "bookmarks": ["t:0:1#1@3", "t:0:2"]}, False),
        ({"command": "renew", "bookmarks": ["t:0:1"]}, False),
        ({"command": "acknowledge", "filter": "/f = 1"}, False),
        ({"command": "purge"}, False),
    ],
)
def test_only_what_does_no_more_the_second_time_is_sent_twice(fields: dict, safe: bool) -> None:
    assert bears_repetition(Command.of(**fields)) is safe


@pytest.mark.feature("Q8", "X3")
def test_no_command_is_larger_than_a_record_however_long_the_names_are() -> None:
    ranges = [f"{'t' * 249}:0:{2 * offset}#1@1767225600001" for offset in range(12_000)]
    parts = list(chunks(ranges))
    assert [one for part in parts for one in part] == ranges
    assert max(sum(map(len, part)) for part in parts) < 1_000_000 // 2
    assert [len(part) for part in chunks([f"t:0:{offset}" for offset in range(12_000)])] == [5_000, 5_000, 2_000]
    assert list(chunks([])) == []

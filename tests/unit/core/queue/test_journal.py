"""What the journal of a queue shard holds over many steps and epochs: numbers that stay, keys that go."""

from dataclasses import replace

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import Flag
from lapse.core.queue.change import ChangeKind
from lapse.core.queue.journal import journal_record
from lapse.core.queue.journal import queue_journal as journals
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.segments import segment as segments
from lapse.core.queue.segments.segment import State
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from support.suite.at_length import alike
from unit.core.queue.compared.small_shard import small
from unit.core.queue.world import World

QUEUE = QueueSettings(name="orders", expiration=Expiration(enabled=True), lease_ms=100, max_cancels=2)
CHANGE_KINDS = (
    "ARRIVED LEASED SENT RETURNED CANCELLED RENEWED SETTLED EXPIRED SCHEDULED UNSCHEDULED SUBSCRIBED UNSUBSCRIBED "
    "PAUSED RESUMED RELEASED REMEMBERED HONOURED IDENTIFIED FORGOTTEN"
)


@pytest.mark.feature("Q16")
def test_numbers_that_changelogs_hold_never_change() -> None:
    assert [kind.name for kind in ChangeKind][:19] == CHANGE_KINDS.split()
    assert [kind.value for kind in ChangeKind][:19] == list(range(1, 20))
    states = "GONE AVAILABLE LEASED DELAYED SENT EXPIRED"
    assert [state.name for state in State][:6] == states.split()
    assert [state.value for state in State][:6] == list(range(6))
    assert (Flag.RANKED, Flag.BARRIER) == (1, 2)
    assert (segments.SIZE, journals.RING) == (4_096, 256)


@pytest.mark.feature("Q16")
def test_what_a_new_epoch_inherits_is_moved_under_its_epoch_and_the_old_keys_go() -> None:
    with small(size=3, ring=4):
        one = World(QUEUE)
        for _ in range(10):
            one.publish("orders")
        one.read("orders")
        one.commit()
        one.crash()
        one.crash()
        for _ in range(8):
            one.subscribe("inky")
            one.commit()
        latest = one.log.latest()
        assert sorted(int.from_bytes(key[9:]) for key in latest if key[:1] == b"g") == [0, 1, 2, 3]
        assert {int.from_bytes(key[1:9]) for key in latest} == {one.epoch}


@pytest.mark.feature("Q16")
@pytest.mark.parametrize("ring", alike(4, 2, 6))
def test_a_step_is_overwritten_only_once_all_that_it_touched_is_written_whole(ring: int) -> None:
    for later in range(2 * ring):
        with small(size=2, ring=ring):
            one = World(QUEUE)
            for _ in range(6 * ring):
                one.publish("orders")
            one.read("orders")
            one.commit()
            for _ in range(later):
                one.subscribe("inky")
                one.commit()
            one.crash()  # compares what comes back with what was durable


@pytest.mark.feature("Q16")
@pytest.mark.parametrize("cut", alike(*range(12)))
def test_a_take_over_that_is_torn_off_anywhere_does_nothing_twice_and_leaves_nothing_behind(cut: int) -> None:
    """What it has written of segments already contains the last step; the next one finds them under two epochs."""
    with small(size=2, ring=4):
        one = World(QUEUE)
        for _ in range(6):
            one.publish("orders")
        one.read("orders")
        one.commit()
        for _ in range(5):
            one.subscribe("inky", 5)
            one.commit()
        assert any(key[:1] == b"g" for key in one.log.latest())
        assert len(one.deliver()["inky"]) == 5
        one.commit()
        one.crash(torn=[cut])  # compares what comes back with what was durable
        segments = [key[9:] for key in one.log.latest() if key[:1] == b"g"]
        assert len(segments) == len(set(segments))


@pytest.mark.feature("Q16")
def test_the_changelog_of_a_long_life_is_as_long_as_what_lives() -> None:
    with small(size=3, ring=4):
        one = World(QUEUE)
        one.subscribe("inky", 3)
        for _ in range(40):
            one.publish("orders")
            one.publish("orders", enqueue_at_ms=one.now_ms + 1, message_id=b"%d" % one.now_ms)
            one.read("orders")
            one.deliver()
            one.commit()
            one.advance(1)
            one.deliver()
            one.settle("acknowledge", "inky", *claims(one))
            one.commit()
        assert not one.oracle.in_state("available", "leased", "delayed")
        kinds = [key[:1] for key in one.log.latest()]
        assert kinds.count(b"d") <= 4
        assert kinds.count(b"g") <= 1
        assert kinds.count(b"c") == 1
        assert not kinds.count(b"s")


@pytest.mark.feature("Q16", "C27")
def test_dying_messages_keep_their_order_over_a_crash() -> None:
    with small():
        one = World(replace(QUEUE, dead_letter_topic="dlq.orders"))
        for ttl_ms in (500, 300, 400):
            one.publish("orders", ttl_ms=ttl_ms)
        one.read("orders")
        one.refusing = 1
        one.settle("expire", "inky", Claim("orders", 0, 0, 2))
        one.commit()
        one.crash()
        assert [bookmark[2] for bookmark in one.peek()] == [0, 1, 2]
        assert list(one.shard.state.pending) == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.feature("Q16", "X7")
def test_a_step_of_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    restored = restore([])
    journal = QueueJournal(restored.state, 1, restored)
    monkeypatch.setattr(journal_record, "_FORMAT", 9)
    written = journal.begin()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="format 9; this version of lapse reads format 1"):
        restore([(key, value) for key, value in written if value is not None])


def claims(one: World) -> list[Claim]:
    return [Claim(*m.bookmark, m.bookmark[2], m.deliveries) for m in one.oracle.in_state("leased")]

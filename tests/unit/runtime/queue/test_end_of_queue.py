"""A deleted queue, without a broker: all of its messages leave, in parts, and not before their letters are safe."""

import json

import pytest

from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.core.reason import Reason
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.tp import TP
from unit.runtime.queue.machine_alone import Letters, Payloads, Record, command, finish


def deleted(letters: Letters, *values: bytes) -> tuple[QueueMachine, int]:
    """Return a queue whose deletion was decided with these messages, and the instant, ms."""
    settings = QueueSettings(name="orders", dead_letter_topic="dlq.orders", dead_letter_reasons=frozenset(Reason))
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    one.arrive("orders", 0, [Record(offset, value=value) for offset, value in enumerate(values)])
    command(one, 1_000, "delete", force=True)
    now_ms = 1_000
    while not one.shard.agreement.retired:
        now_ms += 1
        for sent in finish(one, letters).after:
            if sent.key == SHARD_MESSAGE_KEY:
                one.command(Record(timestamp=now_ms, key=sent.key, value=sent.value))
    finish(one, letters)
    return one, now_ms


def decided_again(one: QueueMachine, at_ms: int) -> None:
    """The first shard repeats its decision to each shard that is not gone, every 2 s."""
    shard_message = {
        "kind": "decided",
        "id": 1_000,
        "sender": 0,
        "to": 0,
        "cause": "delete",
        "force": True,
        "report": None,
    }
    one.command(Record(timestamp=at_ms, key=SHARD_MESSAGE_KEY, value=json.dumps(shard_message).encode()))


@pytest.mark.feature("C4", "C27", "D3")
@pytest.mark.parametrize("come", [decided_again, lambda one, at_ms: command(one, at_ms, "pause")])
def test_a_deleted_queue_ends_only_once_its_refused_letters_are_safe_whatever_comes(come) -> None:
    letters = Letters(100)
    one, now_ms = deleted(letters, b"x" * 200, b"{}")
    one.advance(now_ms)
    finish(one, letters)
    assert list(one.shard.state.pending) == [(0, 0)]
    for at_ms in (now_ms + 20_000, now_ms + 40_000):
        come(one, at_ms)
        one.advance(at_ms)
        finish(one, letters)
        assert not one.stopped
    one.retry._safe += [(0, 0)]
    finish(one, letters)
    one.advance(now_ms + 40_000)
    assert one.stopped


@pytest.mark.slow
@pytest.mark.feature("C4", "C60")
def test_the_messages_of_a_deleted_queue_leave_in_parts_whatever_comes() -> None:
    letters, parts = Letters(), []
    one, now_ms = deleted(letters, *[b"{}"] * 10_000)
    while one.shard.depth()["depth"]:
        before = len(letters.taken)
        command(one, now_ms, "pause")
        one.advance(now_ms)
        finish(one, letters)
        parts.append(len(letters.taken) - before)
    assert parts == [4_096, 4_096, 10_000 - 2 * 4_096]


def temporary(**more) -> QueueMachine:
    settings = QueueSettings(name="orders", idle_ms=300_000, **more)
    one = QueueMachine(settings, restore([]), 1, Payloads(), QueueOutput("orders", 0, 1, "dlq.orders", 1), "orders")
    one.take_over(1_000)
    finish(one)
    return one


@pytest.mark.feature("Q18", "C39", "Q13")
@pytest.mark.parametrize("late", [False, True])
def test_a_publish_beyond_the_target_depth_is_use_of_the_queue(late: bool) -> None:
    one = temporary(target_depth=1)
    one.note_received("orders", 0)
    assert one.arrive("orders", 0, [Record(0), Record(1)]) == 1
    one.deliver(2_000)
    finish(one)
    if late:  # it comes when the step has handed out already
        one.deliver(9_000)
    one.note_received("orders", 0)
    if late:
        finish(one)
    one.deliver(9_000)
    assert one.shard.activity.last_ms == 9_000


@pytest.mark.feature("Q18", "C48", "C59")
def test_a_question_about_a_message_of_another_topic_is_no_use_of_the_queue() -> None:
    """`lapse explain` asks up to ten queues whether they have a message; most of them do not know its topic."""
    one = temporary()
    one.arrive("orders", 0, [Record(0)])
    finish(one)
    used_ms = one.shard.activity.last_ms
    command(one, 9_000, "sow", bookmarks=["elsewhere:0:0"])
    finish(one)
    assert one.shard.activity.last_ms == used_ms
    command(one, 9_001, "sow", bookmarks=["elsewhere:0:0", "orders:0:7"])
    finish(one)
    assert one.shard.activity.last_ms == 9_001
    command(one, 9_002, "sow")
    finish(one)
    assert one.shard.activity.last_ms == 9_002


@pytest.mark.feature("Q18", "C39")
def test_a_publish_vetoes_the_end_that_an_idle_shard_has_agreed_to() -> None:
    """The shard takes in nothing then. Without the veto the message would be lost with the queue's topics."""
    one = temporary(partition=1, shards=2)
    shard_message = {
        "kind": "ask",
        "id": 301_000,
        "sender": 0,
        "to": 1,
        "cause": "idle",
        "force": False,
        "report": None,
    }
    one.command(Record(timestamp=301_000, key=SHARD_MESSAGE_KEY, value=json.dumps(shard_message).encode()))
    (check,) = finish(one).after
    one.command(Record(timestamp=301_001, key=SHARD_MESSAGE_KEY, value=check.value))
    (report,) = finish(one).after
    assert json.loads(report.value)["report"]["willing"]
    assert one.room() == 0
    one.note_received("orders", 0)
    one.deliver(301_002)
    (veto,) = finish(one).after
    assert not json.loads(veto.value)["report"]["willing"]


def asked_whether_it_can_end(one: QueueMachine, cause: str, force: bool, at_ms: int) -> dict:
    """Ask a second shard, and return its report."""
    shard_message = {"kind": "ask", "id": at_ms, "sender": 0, "to": 1, "cause": cause, "force": force, "report": None}
    one.command(Record(timestamp=at_ms, key=SHARD_MESSAGE_KEY, value=json.dumps(shard_message).encode()))
    (check,) = finish(one).after
    one.command(Record(timestamp=at_ms + 1, key=SHARD_MESSAGE_KEY, value=check.value))
    (report,) = finish(one).after
    assert one.unfinished is None
    return json.loads(report.value)["report"]


@pytest.mark.feature("C77", "C4", "Q13", "Q18")
@pytest.mark.parametrize(("cause", "force"), [("delete", True), ("delete", False), ("idle", False)])
def test_a_record_that_a_transfer_has_put_beyond_the_target_depth_keeps_the_queue(cause: str, force: bool) -> None:
    one = temporary(partition=1, shards=2, target_depth=1)
    put = [("lapse-transfer", b"orders/t-9"), ("lapse-ttl-ms", b"0")]
    log = [Record(0), Record(1), Record(2, headers=put), Record(3, headers=[("lapse-transfer", b"other/t-8")])]
    one.note_received("orders", 0)
    assert one.arrive("orders", 0, log) == 1
    finish(one)
    kept = asked_whether_it_can_end(one, cause, force, 400_000)
    assert not kept["willing"]
    assert (kept["counts"]["unconfirmed"], kept["active_ms"]) == (1, 400_001 if cause == "idle" else 0)
    assert kept["transfers"] == ([] if cause == "idle" else ["t-9"])
    assert one.arrive("orders", 0, log[1:]) == 0, "looked at, and not taken in"
    log[2].headers = []
    gone = asked_whether_it_can_end(one, cause, force, 900_000)
    assert (gone["willing"], gone["transfers"], "unconfirmed" in gone["counts"]) == (
        cause == "idle" or force,
        [],
        False,
    )


@pytest.mark.feature("C4", "C77", "C81", "Q18")
@pytest.mark.parametrize(("cause", "force"), [("delete", True), ("delete", False), ("idle", False)])
def test_a_record_for_a_new_shard_that_waits_keeps_the_queue(cause: str, force: bool) -> None:
    one = temporary(partition=1, shards=2, waits=True)
    one._payloads.records = {0: Record(0), 1: Record(1)}  # an older shard has read them
    assert not asked_whether_it_can_end(one, cause, force, 400_000)["willing"], "not known yet where it will begin"
    one.unread_records.waits_from = lambda: {TP("orders", 1): 2}
    assert asked_whether_it_can_end(one, cause, force, 500_000)["willing"]
    other = temporary(partition=1, shards=2, waits=True)
    other._payloads.records = {0: Record(0), 1: Record(1), 2: Record(2)}
    other.unread_records.waits_from = lambda: {TP("orders", 1): 2}
    kept = asked_whether_it_can_end(other, cause, force, 400_000)
    assert (kept["willing"], kept["active_ms"]) == (False, 400_001 if cause == "idle" else 0)
    assert kept["waits"] is (cause == "delete")

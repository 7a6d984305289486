"""How a queue ends: what stands in its way, who uses it, and what becomes of what is left (C4, C39, L11, Q18)."""

from __future__ import annotations

import pytest

from lapse.core.error_code import ErrorCode
from lapse.core.lifetime import NEVER, Expiration
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfer_command import TransferCommands
from lapse.core.queue.transfer.transfers import HandOver
from lapse.core.reason import Reason
from lapse.core.shard.agreement import GRACE_MS
from lapse.core.shard.refused import CommandRefused
from lapse.core.shard.retirement import LAST_READ, RETIREMENT, Asker, Phase, ShardMessage, ShardMessageKind, Verdict
from lapse.protocol.command import Command
from unit.core.queue.compared.endings import converse
from unit.core.queue.compared.written import published

MINUTE_MS = 60_000
IDLE_MS = 5 * MINUTE_MS
T0 = 1_000_000


def settings(**more) -> QueueSettings:
    more.setdefault("idle_ms", IDLE_MS)
    return QueueSettings(name="temp", **more)


class Temporary:
    """A temporary queue's only shard, with its journal; `at` says what time it is."""

    def __init__(self, **more) -> None:
        self.settings = settings(**more)
        self.log: dict[bytes, bytes | None] = {}
        self.written: list[bytes] = []
        self.epoch = 0
        self.now_ms = T0
        self.begin()

    def begin(self, **more) -> Step:
        """Take the shard over, from its journal."""
        self.settings = settings(**{**self._changed(), **more})
        self.epoch += 1
        restored = restore((key, value) for key, value in self.log.items() if value is not None)
        self.shard = QueueShard(self.settings, restored.state)
        self.journal = QueueJournal(restored.state, self.epoch, restored)
        self.log.update(self.journal.begin())
        step = Step()
        self.shard.take_over(self.now_ms, step)
        return self.commit(step)

    def _changed(self) -> dict:
        names = ("idle_ms", "dead_letter_topic", "dead_letter_reasons", "expiration", "lease_ms")
        return {name: getattr(self.settings, name) for name in names}

    def commit(self, step: Step) -> Step:
        if step.changes:
            items = self.journal.encode(step)
            self.written += [key for key, _ in items]
            self.log.update(items)
        return step

    def at(self, now_ms: int) -> Step:
        """Let time pass, and whatever is due then happen."""
        self.now_ms = now_ms
        step = Step()
        while self.shard.next_due_ms() <= now_ms:
            self.shard.advance(now_ms, step)
            while step.shard_messages:
                self.shard.agreement.receive(step.shard_messages.pop(0), now_ms, step)
        return self.commit(step)

    def use(self, work) -> None:
        step = Step()
        self.shard.note_use(self.now_ms, step)
        work(step)
        self.commit(step)

    def publish(self, offset: int, **said) -> None:
        record = published(offset, timestamp=self.now_ms, **said)
        self.use(lambda step: self.shard.arrive("temp", 0, [record], step))

    def subscribe(self, name: str = "s") -> None:
        self.use(lambda step: self.shard.subscribing.subscribe(name, "client", 1, MINUTE_MS, "", self.now_ms, step))

    @property
    def ended(self) -> bool:
        return self.shard.agreement.retired


@pytest.mark.feature("Q18", "C39")
def test_a_queue_that_nobody_uses_ends_at_the_millisecond() -> None:
    queue = Temporary()
    assert queue.shard.next_due_ms() == T0 + IDLE_MS
    queue.at(T0 + IDLE_MS - 1)
    assert not queue.ended
    step = queue.at(T0 + IDLE_MS)
    assert queue.ended
    assert [(one.kind, one.detail) for one in step.events] == [("deleted", "idle for 300 s")]
    assert not queue.shard.agreement.stopped, "it answers for a while"
    queue.at(queue.now_ms + GRACE_MS)
    assert queue.shard.agreement.stopped
    assert queue.shard.next_due_ms() == NEVER


@pytest.mark.feature("Q18", "L14", "C25")
@pytest.mark.parametrize("asked", [False, True])
def test_what_is_left_leaves_as_auto_deleted_with_letters_if_asked_for(asked: bool) -> None:
    reasons = frozenset({Reason.AUTO_DELETED} if asked else ())
    queue = Temporary(dead_letter_topic="dlq.temp", dead_letter_reasons=reasons)
    for offset in range(3):
        queue.publish(offset)
    step = queue.at(T0 + IDLE_MS)
    assert [(one.reasons, one.letter, len(one.messages)) for one in step.removals] == [
        ((Reason.AUTO_DELETED,), asked, 3)
    ]
    assert queue.shard.depth()["depth"] == 0


@pytest.mark.feature("Q18", "C39")
@pytest.mark.parametrize(
    "use",
    [
        lambda queue: queue.publish(0),
        lambda queue: queue.use(lambda step: None),  # a peek, a depth, a heartbeat of nobody: it changes nothing
        lambda queue: queue.use(lambda step: queue.shard.pause(queue.now_ms, step)),
        lambda queue: queue.use(
            lambda step: queue.shard.settle(
                SettleAction.ACKNOWLEDGE, "stranger", [Claim("temp", 0, 0, 0)], queue.now_ms, step
            )
        ),
    ],
)
def test_every_use_begins_the_idle_time_anew(use) -> None:
    queue = Temporary()
    queue.now_ms = T0 + IDLE_MS - 1
    use(queue)
    queue.at(T0 + IDLE_MS)
    assert not queue.ended
    assert queue.shard.next_due_ms() == T0 + 2 * IDLE_MS - 1
    queue.at(T0 + 2 * IDLE_MS - 1)
    assert queue.ended


@pytest.mark.feature("C39", "Q18")
def test_an_open_subscription_is_use_for_as_long_as_it_is_open_and_so_is_its_end() -> None:
    queue = Temporary()
    queue.subscribe()
    for minute in range(1, 20):
        queue.at(T0 + minute * (MINUTE_MS - 1))
        assert queue.shard.note_heartbeat("s", queue.now_ms), "it is not even noted as use: that it is there is enough"
    assert not queue.ended
    lost_ms = T0 + 19 * (MINUTE_MS - 1) + MINUTE_MS
    queue.at(lost_ms)
    assert not queue.shard.state.subscriptions, "lost"
    queue.at(lost_ms + IDLE_MS - 1)
    assert not queue.ended
    queue.at(lost_ms + IDLE_MS)
    assert queue.ended


@pytest.mark.feature("C50", "Q18", "L5")
def test_a_scheduled_message_keeps_the_queue_and_coming_due_is_use() -> None:
    queue = Temporary()
    due_ms = T0 + 3 * IDLE_MS
    queue.publish(0, enqueue_at_ms=due_ms)
    queue.at(due_ms)
    assert not queue.ended, "it has just become available"
    assert queue.shard.depth()["available"] == 1
    queue.begin()
    queue.at(due_ms + IDLE_MS - 1)
    assert not queue.ended
    queue.at(due_ms + IDLE_MS + IDLE_MS // 60)
    assert queue.ended


@pytest.mark.feature("C50", "Q16")
def test_a_message_that_came_due_while_nobody_worked_is_not_lost_either() -> None:
    queue = Temporary()
    queue.publish(0, enqueue_at_ms=T0 + 3 * IDLE_MS)
    queue.now_ms = T0 + 9 * IDLE_MS
    queue.begin()
    queue.at(T0 + 9 * IDLE_MS)
    assert not queue.ended
    assert queue.shard.next_due_ms() == T0 + 10 * IDLE_MS


@pytest.mark.feature("C50", "C19")
def test_a_delayed_message_keeps_the_queue_and_coming_back_is_use() -> None:
    queue = Temporary()
    queue.subscribe()
    queue.publish(0)
    queue.use(lambda step: queue.shard.deliver(queue.now_ms, step))
    claims, delay_ms = [Claim("temp", 0, 0, 0)], 3 * IDLE_MS
    queue.use(lambda step: queue.shard.settle(SettleAction.CANCEL, "s", claims, queue.now_ms, step, delay_ms))
    queue.use(lambda step: queue.shard.unsubscribe("s", queue.now_ms, step))
    queue.at(T0 + 3 * IDLE_MS - 1)
    assert not queue.ended
    assert queue.shard.depth()["delayed"] == 1
    queue.at(T0 + 3 * IDLE_MS)
    assert (queue.shard.depth()["available"], queue.ended) == (1, False)
    queue.at(T0 + 4 * IDLE_MS)
    assert queue.ended


@pytest.mark.feature("C50")
def test_a_lease_that_was_settled_long_before_its_end_does_not_keep_the_queue() -> None:
    queue = Temporary(lease_ms=10 * IDLE_MS)
    queue.subscribe()
    queue.publish(0)
    queue.use(lambda step: queue.shard.deliver(queue.now_ms, step))
    queue.use(
        lambda step: queue.shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("temp", 0, 0, 0)], queue.now_ms, step)
    )
    queue.use(lambda step: queue.shard.unsubscribe("s", queue.now_ms, step))
    queue.at(T0 + IDLE_MS)
    assert queue.ended


@pytest.mark.feature("C50", "L11")
def test_a_removal_begins_the_idle_time_anew() -> None:
    queue = Temporary(expiration=Expiration(enabled=True))
    queue.publish(0, ttl_ms=IDLE_MS - 1)
    queue.at(T0 + IDLE_MS)
    assert not queue.ended
    assert queue.shard.next_due_ms() == T0 + 2 * IDLE_MS
    queue.at(T0 + 2 * IDLE_MS)
    assert queue.ended


def transferred(queue: Temporary, confirmed: bool) -> None:
    """Hand the first message over: held, or confirmed as well."""
    claims = [Claim("temp", 0, 0, 0)]
    queue.use(lambda step: queue.shard.transfer_source.hold("t-1", "there", claims, 9, queue.now_ms, step))
    if confirmed:
        over = [HandOver("temp", 0, 0, 1, "there", 0, 5)]
        queue.use(lambda step: queue.shard.transfer_source.confirm("t-1", over, queue.now_ms, step))


@pytest.mark.feature("C77", "Q17")
@pytest.mark.parametrize("confirmed", [False, True])
def test_what_was_handed_over_and_is_unfinished_keeps_the_queue(confirmed: bool) -> None:
    queue = Temporary()
    queue.publish(0)
    transferred(queue, confirmed)
    queue.begin()
    queue.at(T0 + 9 * IDLE_MS)
    assert not queue.ended
    queue.use(lambda step: queue.shard.transfer_source.finish("t-1", step))
    if not confirmed:
        queue.use(lambda step: queue.shard.transfer_source.give_back("t-1", queue.now_ms, step))
    queue.at(T0 + 10 * IDLE_MS)
    assert queue.ended


@pytest.mark.feature("C77", "Q17")
def test_what_was_put_here_and_is_not_confirmed_keeps_the_queue() -> None:
    queue = Temporary()
    queue.publish(0, transferred=("temp", "t-1"))
    queue.at(T0 + 9 * IDLE_MS)
    assert not queue.ended
    queue.use(lambda step: queue.shard.transfer_target.accept("t-1", [Claim("temp", 0, 0, 0)], queue.now_ms, step))
    queue.at(T0 + 10 * IDLE_MS - 1)
    assert not queue.ended
    queue.at(T0 + 10 * IDLE_MS)
    assert queue.ended


@pytest.mark.feature("C77", "C4")
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("state", ["transferring", "confirmed", "unconfirmed"])
def test_no_deletion_takes_along_what_was_handed_over(state: str, force: bool) -> None:
    queue = Temporary(idle_ms=0)
    queue.publish(0, **({"transferred": ("temp", "t-1")} if state == "unconfirmed" else {}))
    if state != "unconfirmed":
        transferred(queue, state == "confirmed")
    step = converse(queue.shard, T0, lambda step: queue.shard.agreement.delete(Asker("c"), force, T0, step))
    (refused,) = step.verdicts
    named = "1 unconfirmed" if state == "unconfirmed" else "1 transferring"
    assert refused.refusal.text.startswith(f"temp is not empty: {named}. Unfinished is transfer t-1: ")
    assert not queue.ended
    queue.use(lambda step: queue.shard.transfer_target.discard("t-1", T0, step))
    queue.use(lambda step: queue.shard.transfer_source.finish("t-1", step))
    queue.use(lambda step: queue.shard.transfer_source.give_back("t-1", T0, step))
    done = converse(queue.shard, T0, lambda step: queue.shard.agreement.delete(Asker("c"), True, T0, step))
    assert done.verdicts[0].refusal is None


@pytest.mark.feature("C4", "C81")
@pytest.mark.parametrize(("force", "unread"), [(False, True), (True, True), (False, False), (True, False)])
def test_what_a_shard_that_waits_has_not_read_stands_in_the_way_of_a_deletion(force: bool, unread: bool) -> None:
    """It cannot leave with a letter, and may be of a transfer, so force does not take it along either."""
    shards = [QueueShard(settings(idle_ms=0, partition=number, shards=2, waits=number == 1)) for number in (0, 1)]
    shards[1].retirable.has_unread = unread
    asking, verdicts = Step(), list[Verdict]()
    assert shards[0].agreement.delete(Asker("c"), force, T0, asking) is None
    under_way = asking.shard_messages
    while under_way:
        message, step = under_way.pop(0), Step()
        shards[message.to].agreement.receive(ShardMessage.decode(message.encode()), T0, step)
        under_way += step.shard_messages
        verdicts += step.verdicts
    (verdict,) = verdicts
    if unread:
        assert verdict.refusal.text.startswith("temp is not empty: 1 new shard not reading yet, and something was ")
        assert "purge what the older shards hold" in verdict.refusal.text
    else:
        assert verdict.refusal is None
    assert shards[0].agreement.retired is not unread


@pytest.mark.feature("C4", "Q23")
def test_the_decision_stays_among_the_last_records_of_the_journal_however_much_leaves() -> None:
    """`lapse apply` looks for it there."""
    queue, step = Temporary(), Step()
    later = [published(number, timestamp=T0, enqueue_at_ms=T0 + MINUTE_MS) for number in range(2 * LAST_READ)]
    queue.use(lambda step: queue.shard.arrive("temp", 0, later, step, T0))
    assert queue.shard.agreement.delete(Asker("me"), True, T0, step) is None
    while step.shard_messages:
        queue.shard.agreement.receive(step.shard_messages.pop(0), T0, step)
    queue.commit(step)
    del queue.written[:]
    queue.at(T0)
    assert queue.shard.depth()["scheduled"] == 0
    assert len(queue.written) > 2 * LAST_READ
    assert RETIREMENT in [key[:1] for key in queue.written[-LAST_READ:]]


@pytest.mark.feature("Q18", "Q16")
def test_idle_time_goes_on_over_restarts() -> None:
    queue = Temporary()
    queue.now_ms += MINUTE_MS
    queue.publish(0)
    for _ in range(3):
        queue.now_ms += MINUTE_MS
        queue.begin()
    due_ms = queue.shard.next_due_ms()
    used_ms = T0 + MINUTE_MS
    assert used_ms + IDLE_MS <= due_ms <= used_ms + IDLE_MS + IDLE_MS // 60
    queue.at(due_ms)
    assert queue.ended


@pytest.mark.feature("Q18", "Q16")
def test_use_that_the_journal_does_not_know_of_counts_after_a_restart() -> None:
    """The journal learns of use once in a sixtieth of the idle time; a restart may not shorten it."""
    queue = Temporary()
    for _ in range(1_000):
        queue.now_ms += 7
        queue.use(lambda step: None)
    used_ms, written = queue.now_ms, sum(key[:1] == b"u" for key in queue.written)
    assert written == 2, "at the beginning, and after five seconds of seven"
    queue.begin()
    assert queue.shard.next_due_ms() >= used_ms + IDLE_MS


@pytest.mark.feature("Q18")
def test_another_configuration_is_a_use() -> None:
    queue = Temporary()
    queue.now_ms = T0 + IDLE_MS - 1
    queue.begin(configured="other")
    assert queue.shard.next_due_ms() == queue.now_ms + IDLE_MS
    queue.now_ms += MINUTE_MS
    queue.begin(configured="other")
    assert queue.shard.next_due_ms() < queue.now_ms + IDLE_MS


@pytest.mark.feature("Q18")
def test_a_queue_that_is_not_temporary_journals_nothing_and_never_ends() -> None:
    queue = Temporary(idle_ms=0)
    queue.publish(0)
    queue.at(T0 + 1_000 * IDLE_MS)
    assert not queue.ended
    assert queue.shard.state.ending.used is None


@pytest.mark.feature("Q18", "C39")
@pytest.mark.parametrize("subscribed", [False, True])
def test_a_shard_that_is_not_idle_says_since_when_and_with_a_subscription_it_is_used_now(subscribed: bool) -> None:
    shards = [QueueShard(settings(partition=partition, shards=2)) for partition in (0, 1)]
    for shard in shards:
        shard.take_over(T0, Step())
    used_ms, now_ms, step = T0 + MINUTE_MS, T0 + IDLE_MS, Step()
    shards[1].note_use(used_ms, Step())
    if subscribed:
        shards[1].subscribing.subscribe("s", "c", 1, 2 * IDLE_MS, "", used_ms, Step())
    shards[0].advance(now_ms, step)
    while step.shard_messages:
        message = step.shard_messages.pop(0)
        shards[message.to].agreement.receive(message, now_ms, step)
    assert not shards[0].agreement.retired
    assert shards[0].next_due_ms() == (now_ms if subscribed else used_ms) + IDLE_MS


@pytest.mark.feature("C4", "Q16")
def test_being_prepared_survives_and_keeps_everything_out() -> None:
    shard = QueueShard(settings(partition=1, shards=2))
    journal = QueueJournal(shard.state, 1)
    log = dict(journal.begin())
    first = QueueShard(settings(partition=0, shards=2))
    asking = Step()
    assert first.agreement.delete(Asker("c"), False, T0, asking) is None
    (ask,) = [message for message in asking.shard_messages if message.to == 1]
    step = Step()
    shard.agreement.receive(ask, T0, step)
    check = step.shard_messages.pop()
    assert shard.agreement.checking
    shard.agreement.receive(check, T0, step)
    assert (step.shard_messages[0].kind, step.shard_messages[0].report.willing) == (ShardMessageKind.REPORT, True)
    log.update(journal.encode(step))
    again = QueueShard(settings(partition=1, shards=2), restore((k, v) for k, v in log.items() if v is not None).state)
    assert again.state.ending.retirement.phase is Phase.PREPARED
    assert again.room() == 0
    again.subscribing.subscribe("s", "c", 1, MINUTE_MS, "", T0, Step())
    assert not again.deliver(T0, Step())
    # The first shard says no after all: what came meanwhile is taken in.
    released = ask.__class__(kind=ShardMessageKind.RELEASED, id=ask.id, sender=0, to=1)
    again.agreement.receive(released, T0, Step())
    assert again.room() > 0


@pytest.mark.feature("L11", "C4")
def test_expired_messages_leave_first_and_leased_ones_are_protected() -> None:
    shard = QueueShard(settings(idle_ms=0, expiration=Expiration(enabled=True), lease_ms=1_000))
    step = Step()
    shard.arrive("temp", 0, [published(0, timestamp=T0, ttl_ms=50), published(1, timestamp=T0, ttl_ms=50)], step)
    shard.subscribing.subscribe("s", "web:1", 1, MINUTE_MS, "", T0, step)
    shard.deliver(T0, step)

    def delete(at_ms: int) -> Step:
        shard.advance(at_ms, step)
        return converse(shard, at_ms, lambda step: shard.agreement.delete(Asker("c"), False, at_ms, step))

    (refused,) = delete(T0 + 50).verdicts
    assert refused.refusal.text.startswith(
        "temp is not empty: 1 leased: 1 by s (web:1) until 1970-01-01T00:16:41.000Z."
    )
    assert [one.reasons for one in step.removals] == [(Reason.TIME_LIMIT,)]
    (done,) = delete(T0 + 1_000).verdicts
    assert done.refusal is None
    assert [one.reasons for one in step.removals] == [(Reason.TIME_LIMIT,)] * 2


@pytest.mark.feature("C77", "Q17")
def test_a_shard_that_has_agreed_to_end_begins_no_transfer() -> None:
    """It has said that nothing is under way. What is confirmed behind that would be forgotten with the shard."""
    shard, step = QueueShard(QueueSettings(name="temp", partition=1, shards=2)), Step()
    shard.arrive("orders", 1, [published(0, timestamp=T0)], step)
    asked = ShardMessage(kind=ShardMessageKind.ASK, id=5, sender=0, to=1, force=True)
    begin = TransferCommands(shard).handlers["transfer"]
    command = Command(command="transfer", id="1", transfer="t", to="elsewhere")
    shard.agreement.receive(asked, T0, step)
    shard.agreement.receive(step.shard_messages.pop(), T0, step)
    with pytest.raises(CommandRefused) as refused:
        begin(command, T0, step)
    assert refused.value.refusal.code is ErrorCode.DELETE_IN_PROGRESS
    shard.agreement.receive(ShardMessage(kind=ShardMessageKind.RELEASED, id=5, sender=0, to=1), T0, step)
    assert begin(command, T0, step)["counts"]["transferring"] == 1


def _agreed_by_both() -> tuple[QueueShard, ShardMessage]:
    """The first of two idle shards, which has agreed to end, and the other one's report, which it has not read yet."""
    shards = [QueueShard(settings(partition=number, shards=2, configured="before")) for number in range(2)]
    for shard in shards:
        shard.take_over(T0, Step())
    asking, reports = Step(), list[ShardMessage]()
    shards[0].advance(T0 + IDLE_MS, asking)
    under_way = asking.shard_messages
    while under_way:
        message, step = under_way.pop(0), Step()
        if message.kind is ShardMessageKind.REPORT:
            reports.append(message)
        else:
            shards[message.to].agreement.receive(message, T0 + IDLE_MS, step)
            under_way += step.shard_messages
    (report,) = reports
    assert report.report is not None
    assert report.report.willing
    return shards[0], report


@pytest.mark.feature("Q18", "C39", "Q23")
@pytest.mark.parametrize("changed", [{"idle_ms": 0}, {"lease_ms": 60_000}], ids=["permanent", "another lease"])
def test_a_changed_configuration_vetoes_an_end_that_is_not_decided_yet(changed: dict[str, int]) -> None:
    """The first shard is taken over with it between its own consent and the other's."""
    first, report = _agreed_by_both()
    again = QueueShard(settings(shards=2, configured="after", **changed), first.state)
    step = Step()
    again.take_over(T0 + IDLE_MS, step)
    again.agreement.receive(report, T0 + IDLE_MS + 1, step)
    assert not again.agreement.retired
    assert {one.kind for one in step.shard_messages} == {ShardMessageKind.RELEASED}


@pytest.mark.feature("Q18", "C39")
def test_a_take_over_alone_vetoes_no_end() -> None:
    first, report = _agreed_by_both()
    again = QueueShard(settings(shards=2, configured="before"), first.state)
    again.take_over(T0 + IDLE_MS, Step())
    again.agreement.receive(report, T0 + IDLE_MS + 1, Step())
    assert again.agreement.retired

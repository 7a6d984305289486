"""All shards of an entity end, or none does, whatever is lost in crashes, repeated or late (C4, Q18)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lapse.core.error_code import ErrorCode
from lapse.core.lifetime import NEVER
from lapse.core.shard.agreement import ASK_AGAIN_MS, GIVE_UP_MS, GRACE_MS, UNUSED_GRACE_MS, Agreement
from lapse.core.shard.event import ShardEvent
from lapse.core.shard.retirement import (
    Asker,
    Cause,
    Holder,
    Phase,
    Report,
    Retirement,
    ShardMessage,
    ShardMessageKind,
    Verdict,
    objection,
)
from support.suite.at_length import examples

IDLE_MS = 60_000


@dataclass
class Step:
    kept: list[Retirement | None] = field(default_factory=list)
    shard_messages: list[ShardMessage] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    events: list[ShardEvent[Any]] = field(default_factory=list)


class Shard:
    """A shard that holds a number of messages, in a log that survives crashes."""

    event_prefix = "the shard, "

    def __init__(self, partition: int, shards: int) -> None:
        self.partition, self.shards = partition, shards
        self.retirement: Retirement | None = None
        self.messages = 0
        self.unread = 0
        self.owed = 0
        """How many unread messages were in the log before the deletion was asked for."""
        self.used_ms = 0
        self.subscribed = False
        self.removed = 0
        self.log: list[ShardMessage] = []
        self.read = 0
        self.recorded: list[str] = []
        self.begin()

    def begin(self) -> None:
        self.agreement = Agreement("orders", self.partition, self.shards, self)

    def take_in(self) -> None:
        """Read the log up to its end."""
        if not self.agreement.frozen:
            self.messages, self.unread, self.owed = self.messages + self.unread, 0, 0

    def journal_retirement(self, retirement: Retirement | None, step: Step) -> None:
        self.retirement = retirement
        step.kept.append(retirement)

    def report(self, cause: Cause, force: bool, now_ms: int) -> Report:
        if cause is Cause.IDLE:
            return Report(willing=self.idle_at_ms() <= now_ms, active_ms=self.used_ms)
        return Report(willing=force or not self.messages, counts={"available": self.messages})

    def remove_some(self, retirement: Retirement, now_ms: int, step: Step) -> bool:
        gone = min(self.messages, 2)
        self.messages -= gone
        self.removed += gone
        return not self.messages

    def is_subscribed(self) -> bool:
        return self.subscribed

    def idle_at_ms(self) -> int:
        return self.used_ms + IDLE_MS

    def idle_ms(self) -> int:
        return IDLE_MS


class Cluster:
    """Some shards, and the messages between them."""

    def __init__(self, shards: int) -> None:
        self.shards = [Shard(partition, shards) for partition in range(shards)]
        self.now_ms = 1_000
        self.verdicts: list[Verdict] = []

    def commit(self, step: Step, lost: bool = False) -> None:
        """The step is durable already; a crash may keep its shard messages from being sent."""
        if lost:
            return
        for message in step.shard_messages:
            self.shards[message.to].log.append(ShardMessage.decode(message.encode()))
        self.verdicts += step.verdicts

    def listen(self, partition: int, lost: bool = False, together: int = 1) -> bool:
        """Have a shard take in its next messages in one step; False if there is none."""
        shard = self.shards[partition]
        if shard.agreement.stopped or shard.read == len(shard.log):
            return False
        if shard.agreement.checking:
            shard.take_in()  # its commands wait for that
        step = Step()
        for message in shard.log[shard.read : shard.read + together]:
            shard.read += 1
            shard.agreement.receive(message, self.now_ms, step)
        self._done(shard, step, lost)
        return True

    def advance(self, partition: int, lost: bool = False) -> bool:
        shard = self.shards[partition]
        if shard.agreement.next_due_ms() > self.now_ms:
            return False
        step = Step()
        shard.agreement.advance(self.now_ms, step)
        self._done(shard, step, lost)
        return True

    def delete(self, force: bool, lost: bool = False) -> str:
        step = Step()
        shard = self.shards[0]
        refused = shard.agreement.delete(Asker("c1"), force, self.now_ms, step)
        for one in self.shards if refused is None else ():
            one.owed = one.unread
        self._done(shard, step, lost)
        return "" if refused is None else refused.text

    def publish(self, partition: int, count: int) -> None:
        """Messages come to a shard, unless it takes in nothing more."""
        shard = self.shards[partition]
        if not shard.agreement.frozen:
            shard.messages += count
            self.use(partition)

    def use(self, partition: int, lost: bool = False) -> None:
        shard = self.shards[partition]
        step = Step()
        if not shard.agreement.retired:
            shard.used_ms = self.now_ms
            shard.agreement.note_use(self.now_ms, step)
        self._done(shard, step, lost)

    def crash(self, partition: int) -> None:
        shard = self.shards[partition]
        if shard.retirement is not None:
            shard.retirement = Retirement.decode(shard.retirement.encode())
        shard.begin()
        shard.agreement.take_over(self.now_ms)

    def settle(self) -> None:
        """Let every message be heard, and nothing be due."""
        while any([*map(self.listen, range(len(self.shards))), *map(self.advance, range(len(self.shards)))]):
            pass

    def _done(self, shard: Shard, step: Step, lost: bool) -> None:
        shard.recorded += [one.detail for one in step.events if one.ends_entity]
        self.commit(step, lost)
        if lost:
            self.crash(shard.partition)

    @property
    def phases(self) -> list[Phase | None]:
        return [None if shard.retirement is None else shard.retirement.phase for shard in self.shards]


class Machine(RuleBasedStateMachine):
    @initialize(shards=st.integers(1, 4))
    def begin(self, shards: int) -> None:
        self.cluster = Cluster(shards)
        self.forced = False

    def which(self, number: int) -> int:
        return number % len(self.cluster.shards)

    @rule(force=st.sampled_from([False, False, True]), lost=st.booleans())
    def delete(self, force: bool, lost: bool) -> None:
        if not self.cluster.delete(force, lost):
            self.forced |= force

    @rule(number=st.integers(0, 3), count=st.integers(1, 3))
    def publish(self, number: int, count: int) -> None:
        self.cluster.publish(self.which(number), count)

    @rule(number=st.integers(0, 3), count=st.integers(1, 3))
    def publish_unread(self, number: int, count: int) -> None:
        self.cluster.shards[self.which(number)].unread += count

    @rule(number=st.integers(0, 3))
    def take_in(self, number: int) -> None:
        self.cluster.shards[self.which(number)].take_in()

    @rule(number=st.integers(0, 3))
    def settle_all(self, number: int) -> None:
        self.cluster.shards[self.which(number)].messages = 0

    @rule(
        number=st.integers(0, 3),
        lost=st.sampled_from([False, False, False, True]),
        times=st.integers(1, 3),
        together=st.integers(1, 3),
    )
    def listen(self, number: int, lost: bool, times: int, together: int) -> None:
        for _ in range(times):
            self.cluster.listen(self.which(number), lost, together)

    @rule(number=st.integers(0, 3), again=st.integers(0, 3))
    def hear_again(self, number: int, again: int) -> None:
        """What was read is read once more: the positions of a step that was not durable."""
        shard = self.cluster.shards[self.which(number)]
        shard.log += shard.log[max(0, shard.read - again) : shard.read]

    @rule(number=st.integers(0, 3))
    def use(self, number: int) -> None:
        self.cluster.use(self.which(number))

    @rule(number=st.integers(0, 3))
    def crash(self, number: int) -> None:
        self.cluster.crash(self.which(number))

    @rule(ms=st.sampled_from([1, 100, ASK_AGAIN_MS, GIVE_UP_MS, IDLE_MS]), lost=st.sampled_from([False, False, True]))
    def wait(self, ms: int, lost: bool) -> None:
        self.cluster.now_ms += ms
        for partition in range(len(self.cluster.shards)):
            self.cluster.advance(partition, lost)

    @invariant()
    def nobody_goes_on_where_another_has_ended(self) -> None:
        if hasattr(self, "cluster"):
            shards = self.cluster.shards
            if Phase.RETIRED in self.cluster.phases:
                assert all(shard.agreement.frozen for shard in shards), self.cluster.phases
            for shard in shards:
                assert not shard.removed or self.forced or shard.retirement.cause is Cause.IDLE
                if shard.agreement.retired and shard.retirement.cause is Cause.DELETE and not self.forced:
                    assert not shard.owed, "messages that were there when the deletion was asked for"

    def teardown(self) -> None:
        """When nobody crashes any more, all have ended or all go on."""
        if not hasattr(self, "cluster"):
            return
        cluster = self.cluster
        for _ in range(30):
            for shard in cluster.shards:
                cluster.use(shard.partition)  # nobody is idle
            cluster.settle()
            cluster.now_ms += ASK_AGAIN_MS + GRACE_MS
        assert set(cluster.phases) in ({None}, {Phase.RETIRED})
        for shard in cluster.shards:
            assert shard.agreement.stopped is (shard.retirement is not None)
            assert not shard.agreement.frozen or not shard.messages


@pytest.mark.feature("C4", "Q18", "C39")
def test_all_shards_end_or_none() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(600), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.mark.feature("C4")
@pytest.mark.parametrize(("subscribed", "grace_ms"), [(False, UNUSED_GRACE_MS), (True, GRACE_MS)])
def test_subscribers_have_time_to_hear_of_the_end(subscribed: bool, grace_ms: int) -> None:
    cluster = Cluster(1)
    (shard,) = cluster.shards
    shard.subscribed = subscribed
    cluster.delete(False)
    cluster.settle()
    cluster.now_ms += grace_ms - 1
    cluster.settle()
    assert not shard.agreement.stopped
    cluster.now_ms += 1
    cluster.settle()
    assert shard.agreement.stopped


@pytest.mark.feature("C4", "Q23")
def test_the_first_shard_stops_when_the_last_one_is_gone_and_not_when_it_would_ask_again() -> None:
    cluster = Cluster(3)
    cluster.delete(False)
    while any(cluster.listen(partition) for partition in (2, 1, 0)):
        cluster.now_ms += 1  # what the first shard says comes to the others later
    first, *others = cluster.shards
    cluster.now_ms = first.retirement.since_ms + UNUSED_GRACE_MS
    cluster.settle()
    assert not any(shard.agreement.stopped for shard in cluster.shards)
    cluster.now_ms = max(shard.retirement.since_ms for shard in others) + UNUSED_GRACE_MS
    cluster.settle()
    assert all(shard.agreement.stopped for shard in cluster.shards)


@pytest.mark.feature("C4", "L11")
def test_an_empty_entity_ends_and_says_so() -> None:
    cluster = Cluster(3)
    assert cluster.delete(False) == ""
    cluster.settle()
    assert cluster.phases == [Phase.RETIRED] * 3
    assert [(verdict.asker.command_id, verdict.refusal) for verdict in cluster.verdicts] == [("c1", None)]
    assert all(shard.recorded == ["the shard, by command"] for shard in cluster.shards)
    cluster.now_ms += GRACE_MS
    cluster.settle()
    assert all(shard.agreement.stopped for shard in cluster.shards)
    assert all(shard.agreement.next_due_ms() == NEVER for shard in cluster.shards)


@pytest.mark.feature("C4")
def test_what_is_there_is_counted_over_all_shards_unless_it_is_taken_along() -> None:
    cluster = Cluster(3)
    for partition, count in ((1, 4), (2, 5)):
        cluster.publish(partition, count)
    cluster.delete(False)
    cluster.settle()
    assert cluster.phases == [None] * 3
    assert "orders is not empty: 9 available" in cluster.verdicts[-1].refusal.text
    cluster.delete(True)
    cluster.settle()
    assert cluster.phases == [Phase.RETIRED] * 3
    assert cluster.verdicts[-1].counts == {"available": 9}
    assert [shard.removed for shard in cluster.shards] == [0, 4, 5]


@pytest.mark.feature("C4")
def test_a_shard_that_does_not_answer_keeps_the_entity_in_service() -> None:
    cluster = Cluster(2)
    cluster.delete(False)
    for _ in range(5):
        cluster.listen(0)
    assert cluster.phases == [Phase.ASKING, None]
    assert "orders is about to be deleted already" in cluster.delete(False)
    cluster.now_ms += GIVE_UP_MS
    cluster.advance(0)
    assert "shard 1 did not say within 20 s" in cluster.verdicts[-1].refusal.text
    assert cluster.verdicts[-1].refusal.code == ErrorCode.SHARD_UNAVAILABLE
    cluster.settle()
    assert cluster.phases == [None, None]


@pytest.mark.feature("Q18", "C39")
def test_use_of_any_shard_keeps_the_others_too_and_the_next_question_waits_for_it() -> None:
    cluster = Cluster(3)
    cluster.now_ms = 50_000
    cluster.use(2)
    cluster.now_ms = IDLE_MS + 1_000
    cluster.settle()
    assert cluster.phases == [None] * 3
    assert cluster.shards[0].agreement.next_due_ms() == 50_000 + IDLE_MS
    cluster.now_ms = 50_000 + IDLE_MS
    cluster.settle()
    assert cluster.phases == [Phase.RETIRED] * 3
    assert {shard.retirement.cause for shard in cluster.shards} == {Cause.IDLE}


@pytest.mark.feature("Q18")
def test_use_between_preparing_and_deciding_is_a_veto() -> None:
    cluster = Cluster(3)
    cluster.now_ms = IDLE_MS
    cluster.advance(0)
    while cluster.listen(1):
        pass
    assert cluster.phases == [Phase.ASKING, Phase.PREPARED, None]
    cluster.use(1)
    cluster.settle()
    assert cluster.phases == [None] * 3
    assert not any(shard.agreement.frozen for shard in cluster.shards)


@pytest.mark.feature("C4")
def test_a_prepared_shard_keeps_its_promise_though_it_is_asked_twice_and_gets_messages_back() -> None:
    """A rewind brings messages back meanwhile. The first shard decides by the promise, and the shard served on."""
    cluster = Cluster(2)
    cluster.delete(False)
    cluster.now_ms += ASK_AGAIN_MS
    cluster.advance(0)
    for _ in range(3):
        cluster.listen(1)  # two questions, and the first of its own messages that the logs are read
    assert cluster.phases == [Phase.ASKING, Phase.PREPARED]
    cluster.shards[1].messages = 1
    while cluster.listen(1):
        assert cluster.shards[1].agreement.frozen
    while cluster.listen(0):
        pass
    assert cluster.phases == [Phase.RETIRED, Phase.PREPARED]
    cluster.settle()
    assert cluster.phases == [Phase.RETIRED, Phase.RETIRED]


@pytest.mark.feature("C4")
def test_delete_goes_to_the_first_shard() -> None:
    cluster = Cluster(2)
    step = Step()
    refusal = cluster.shards[1].agreement.delete(Asker("c"), False, 1_000, step)
    assert refusal is not None
    assert (refusal.code, "partition 0" in refusal.text) == (ErrorCode.INVALID_ARGUMENT, True)
    assert step == Step()


@pytest.mark.feature("C4", "X7")
def test_the_objection_names_holders_over_all_shards() -> None:
    reports = [
        Report(
            willing=False,
            counts={"leased": 3, "available": 1},
            holders=(Holder("a", "web:1", 2, 1_000), Holder("b", "", 1, 5_000)),
        ),
        Report(willing=False, counts={"leased": 2, "scheduled": 7}, holders=(Holder("a", "web:1", 2, 3_000),)),
    ]
    text = objection("orders", reports)
    assert "5 leased: 4 by a (web:1) until 1970-01-01T00:00:03.000Z, 1 by b until" in text
    assert "1 available; 7 scheduled" in text
    many = tuple(Holder(f"s{number}", "", 1, 1_000) for number in range(9))
    assert "and 4 more subscriptions" in objection("orders", [Report(willing=False, counts={}, holders=many)])


def test_words_and_retirements_survive_the_wire() -> None:
    report = Report(willing=False, counts={"leased": 1}, holders=(Holder("s", "c", 1, 5),), active_ms=7)
    for kind in ShardMessageKind:
        message = ShardMessage(kind=kind, id=9, sender=1, to=0, cause=Cause.IDLE, force=True, report=report)
        assert ShardMessage.decode(message.encode()) == message
    for one, other in pairwise(Phase):
        kept = Retirement(phase=one, id=3, cause=Cause.DELETE, reports={2: report}, gone=frozenset({1, 2}), since_ms=4)
        assert Retirement.decode(kept.encode()) == kept
        assert one is not other
    with pytest.raises(ValueError, match="no message"):
        ShardMessage.decode(b'{"kind": "ask"}')
    with pytest.raises(ValueError, match="unexpected character"):
        ShardMessage.decode(b"hello")


_SAID = b'{"kind": "report", "id": 9, "sender": 1, "to": 0, "cause": "idle", "force": false, "report": %b}'
_HOLDER = (
    b'{"willing": false, "holders": [{"subscription": "s", "client": "c", "count": 1, "until_ms": 5}], "counts": {}}'
)


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "value",
    [
        b"[" * 100_000,
        b"[]",
        *(_SAID.replace(old, new) % b"null" for old, new in ((b"9", b'"9"'), (b": 1", b": null"), (b"false", b"0"))),
        *(_SAID % report for report in (b"1", b"{}", _HOLDER.replace(b"{}", b"[]"), _HOLDER.replace(b"false", b"0"))),
        *(_SAID % _HOLDER.replace(b": 1", count) for count in (b': "1"', b": -1", b": 1e30", b": 281474976710656")),
        _SAID % _HOLDER.replace(b'"c"', b'"\\ud800"'),
        _SAID % _HOLDER.replace(b'"c"', b'1, "self": 1'),
    ],
)
def test_what_anybody_may_write_in_the_place_of_a_message_between_shards_is_refused(value: bytes) -> None:
    ShardMessage.decode(_SAID % _HOLDER)
    with pytest.raises(ValueError, match="."):
        ShardMessage.decode(value)


@pytest.mark.feature("X7")
def test_what_no_shard_of_the_entity_says_is_not_answered() -> None:
    shard, step = Shard(0, 2), Step()
    for sender in (-1, 2, 1 << 40):
        said = ShardMessage(kind=ShardMessageKind.REPORT, id=9, sender=sender, to=0, report=Report(willing=True))
        shard.agreement.receive(said, 1_000, step)
    assert not step.shard_messages, "the broker has no such partition, so the write would end the worker"


@pytest.mark.feature("C1", "L11")
@pytest.mark.parametrize(("reads_question_again", "together"), [(False, 1), (True, 1), (True, 2)])
def test_a_new_owner_reads_its_log_before_it_reports_though_the_old_one_was_about_to(
    reads_question_again: bool, together: int
) -> None:
    cluster = Cluster(1)
    (shard,) = cluster.shards
    shard.unread = 1
    cluster.delete(False)
    cluster.listen(0)  # the question; the shard begins to read on
    cluster.crash(0)
    shard.read -= reads_question_again
    while cluster.listen(0, together=together):
        pass
    assert (shard.messages, cluster.phases) == (1, [None])
    assert cluster.verdicts[0].refusal is not None

"""Credits never add up to more than the backlog, and travel to whoever has messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lapse_client.subscriber.credit import Credits

pytestmark = pytest.mark.feature("Q3", "X3")


@given(st.integers(1, 50), st.integers(0, 500))
def test_the_first_deal_hands_out_everything(shards: int, max_backlog: int) -> None:
    grants = Credits(shards, max_backlog).due(0.0)
    assert [grant.shard for grant in grants] == list(range(shards))
    assert sum(grant.credit for grant in grants) == max_backlog
    assert max(grant.credit for grant in grants) - min(grant.credit for grant in grants) <= 1


def test_an_idle_credit_travels_on_only_after_the_answer() -> None:
    deal = Credits(3, 1, idle_ms=50)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    assert deal.due(49.0) == []
    assert deal.due(50.0) == [(0, 0)]
    assert deal.due(1000.0) == []
    deal.answered(0, 0, 1000.0)
    assert deal.due(1000.0) == [(1, 1)]


def test_a_shard_at_work_keeps_its_credit() -> None:
    deal = Credits(2, 1, idle_ms=50)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    deal.delivered(0, 1, 10.0)
    assert deal.due(10_000.0) == []
    deal.settled(0, 1, 10_000.0)
    assert deal.due(10_049.0) == []
    assert deal.due(10_050.0) == [(0, 0)]


def test_a_delivery_on_the_way_keeps_the_credit_from_travelling() -> None:
    deal = Credits(2, 1, idle_ms=50)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    assert deal.due(50.0) == [(0, 0)]
    deal.delivered(0, 1, 51.0)
    deal.answered(0, 0, 52.0)
    assert deal.due(60.0) == []
    deal.settled(0, 1, 70.0)
    assert deal.due(71.0) == [(0, 0)], "told again, behind the acknowledgment"
    assert deal.due(72.0) == []
    deal.answered(0, 0, 73.0)
    assert deal.due(74.0) == [(1, 1)]


def test_a_lost_shard_is_told_again() -> None:
    deal = Credits(2, 10)
    deal.due(0.0)
    deal.lost(1)
    assert deal.due(1.0) == [(1, 5)]


def test_a_queue_may_allow_less_than_was_asked_for() -> None:
    deal = Credits(2, 100)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    deal.allows(1, 5)
    deal.allows(0, None)
    assert deal.due(1.0) == [(0, 3), (1, 2)]


@pytest.mark.feature("Q3")
@pytest.mark.parametrize(("shards", "allowed"), [(1, 4), (3, 7), (3, 2), (4, 0)])
def test_nothing_is_dealt_before_it_is_known_what_all_queues_allow(shards: int, allowed: int) -> None:
    deal = Credits(shards, 100, after_caps=True)
    for grant in deal.due(0.0):
        assert grant.credit == deal.total() == 0
        deal.answered(grant.shard, 0, 0.0)
        deal.allows(grant.shard, allowed if grant.shard == 0 else [None, allowed + 1][grant.shard % 2])
    grants = deal.due(1.0)
    assert sum(grant.credit for grant in grants) == deal.total() == allowed
    assert len(grants) == min(shards, allowed)


@pytest.mark.feature("Q3")
def test_a_queue_that_is_deleted_before_it_says_what_it_allows_is_not_waited_for() -> None:
    deal = Credits(2, 9, after_caps=True)
    deal.allows(0, 7)
    assert deal.total() == 0
    deal.drop([1])
    assert (deal.total(), deal.due(0.0)) == (7, [(0, 7)])


@given(st.integers(1, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 40))
def test_shards_that_join_get_their_share_once_the_others_have_given_it_back(
    shards: int, joining: list[int], max_backlog: int
) -> None:
    deal = Credits(shards, max_backlog)
    now = 0.0
    for count in [0, *joining]:
        if count:
            deal.grow(count)
            shards += count
        for _ in range(4):
            for grant in deal.due(now):
                deal.answered(grant.shard, grant.credit, now)
            assert deal.total() <= max_backlog
        dealt = [deal.credit(shard) for shard in range(shards)]
        assert sum(dealt) == max_backlog
        assert max(dealt) - min(dealt) <= 1


@given(st.integers(1, 8), st.sets(st.integers(0, 7), max_size=7), st.integers(0, 40))
def test_what_shards_had_that_are_gone_is_for_the_others(shards: int, gone: set[int], max_backlog: int) -> None:
    gone = {shard for shard in gone if shard < shards}
    deal = Credits(shards, max_backlog)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
        deal.delivered(grant.shard, grant.credit, 0.0)
    deal.drop(gone)
    for shard in gone:  # whatever comes late
        deal.delivered(shard, 1, 1.0)
        deal.settled(shard, 1, 1.0)
        deal.lost(shard)
    for now in range(4):
        for grant in deal.due(float(now)):
            assert grant.shard not in gone
            deal.answered(grant.shard, grant.credit, float(now))
        assert deal.total() <= max_backlog
    dealt = [deal.credit(shard) for shard in range(shards) if shard not in gone]
    assert sum(dealt) == (max_backlog if dealt else 0)
    assert not dealt or max(dealt) - min(dealt) <= 1


class Traffic(RuleBasedStateMachine):
    """Shards that deliver whatever their credit allows, with commands and answers in flight."""

    @initialize(shards=st.integers(1, 6), max_backlog=st.integers(0, 12))
    def begin(self, shards: int, max_backlog: int) -> None:
        self.credits = Credits(shards, max_backlog, idle_ms=50)
        self.now = 0.0
        self.asked: list[list[int | None]] = [[] for _ in range(shards)]  # on their way: credits, None = acknowledgment
        self.back: list[list[tuple[str, int]]] = [[] for _ in range(shards)]  # records on their way back
        self.allowed = [0] * shards
        self.leased = [0] * shards  # as the shard counts
        self.held = [0] * shards  # as the application counts: arrived and unsettled
        self.visited: set[int] = set()

    def shard(self, number: int) -> int:
        return number % len(self.asked)

    @rule(ms=st.integers(0, 200))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        for grant in self.credits.due(self.now):
            self.asked[grant.shard].append(grant.credit)

    @rule(count=st.integers(1, 3))
    def a_queue_joins(self, count: int) -> None:
        if len(self.asked) < 8:
            self.credits.grow(count)
            for per_shard in (self.asked, self.back):
                per_shard += [[] for _ in range(count)]
            for per_shard in (self.allowed, self.leased, self.held):
                per_shard += [0] * count

    @rule(first=st.integers(0, 7), count=st.integers(1, 3))
    def a_queue_is_deleted(self, first: int, count: int) -> None:
        gone = [shard for shard in range(first, first + count) if shard < len(self.asked)]
        self.credits.drop(gone)
        for shard in gone:  # what it sent may still be on its way; nothing is leased there
            self.asked[shard], self.allowed[shard], self.leased[shard] = [], 0, 0

    @rule(number=st.integers(0, 5))
    def shard_reads_a_command(self, number: int) -> None:
        shard = self.shard(number)
        if self.asked[shard]:
            credit = self.asked[shard].pop(0)
            if credit is None:
                self.leased[shard] = max(0, self.leased[shard] - 1)
                return
            self.allowed[shard] = credit
            self.visited.add(shard)
            self.back[shard].append(("answer", self.allowed[shard]))

    @rule(number=st.integers(0, 5))
    def shard_delivers(self, number: int) -> None:
        shard = self.shard(number)
        if self.leased[shard] < self.allowed[shard]:
            self.leased[shard] += 1
            self.back[shard].append(("delivery", 1))

    @rule(number=st.integers(0, 5))
    def record_arrives(self, number: int) -> None:
        shard = self.shard(number)
        if self.back[shard]:
            kind, figure = self.back[shard].pop(0)
            if kind == "delivery":
                self.held[shard] += 1
                self.credits.delivered(shard, 1, self.now)
            else:
                self.credits.answered(shard, figure, self.now)

    @rule(number=st.integers(0, 5))
    def application_settles(self, number: int) -> None:
        shard = self.shard(number)
        if self.held[shard]:
            self.held[shard] -= 1
            self.asked[shard].append(None)
            self.credits.settled(shard, 1, self.now)

    @invariant()
    def never_more_than_the_backlog(self) -> None:
        if hasattr(self, "credits"):
            assert sum(self.leased) <= self.credits.max_backlog
            assert self.credits.total() <= self.credits.max_backlog


class NarrowTraffic(Traffic):
    """Two shards and one credit: what takes many steps in a certain order is found."""

    @initialize(shards=st.just(2), max_backlog=st.just(1))
    def begin(self, shards: int, max_backlog: int) -> None:
        super().begin(shards, max_backlog)

    @rule(ms=st.just(50))
    def time_passes(self, ms: int) -> None:
        super().time_passes(ms)

    @rule()
    def shards_deliver(self) -> None:
        for number in range(2):
            self.shard_delivers(number)

    @rule(number=st.integers(0, 1))
    def records_arrive(self, number: int) -> None:
        while self.back[number]:
            self.record_arrives(number)

    def a_queue_joins(self, count: int) -> None: ...

    def a_queue_is_deleted(self, first: int, count: int) -> None: ...


TestTraffic = Traffic.TestCase
TestNarrowTraffic = NarrowTraffic.TestCase

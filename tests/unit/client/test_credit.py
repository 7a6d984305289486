"""Credits never add up to more than the backlog, and travel to whoever has messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lapse_client.subscriber.credit import Credits

pytestmark = pytest.mark.feature("Q3", "X3")

ONE = {float("inf"): 1}
"""One delivery without a lease."""


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


@given(st.integers(2, 9), st.integers(1, 8))
def test_credits_that_travel_together_pass_no_shard_over(shards: int, max_backlog: int) -> None:
    deal = Credits(shards, min(max_backlog, shards - 1), idle_ms=50)
    visited: set[int] = set()
    for round_number in range(4 * shards):
        for grant in deal.due(400.0 * round_number):
            visited |= {grant.shard} if grant.credit else set()
            deal.answered(grant.shard, grant.credit, 400.0 * round_number)
    assert visited == set(range(shards))


def test_a_shard_at_work_keeps_its_credit() -> None:
    deal = Credits(2, 1, idle_ms=50)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    deal.delivered(0, 1, 10.0)
    assert deal.due(10_000.0) == []
    deal.settled(0, ONE, 10_000.0)
    assert deal.due(10_049.0) == []
    assert deal.due(10_050.0) == [(0, 0)]


def test_after_the_end_no_shard_is_asked_what_it_has_read() -> None:
    deal = Credits(1, 10)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    deal.delivered(0, 5, 1.0)
    deal.end()
    assert deal.awaits_answers
    assert deal.due(2.0) == [(0, 0)]
    deal.answered(0, 0, 3.0)
    assert not deal.awaits_answers
    deal.settled(0, ONE, 4.0)
    assert deal.due(5.0) == [], "nobody would get the credit"


def test_a_delivery_on_the_way_keeps_the_credit_from_travelling() -> None:
    deal = Credits(2, 1, idle_ms=50)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    assert deal.due(50.0) == [(0, 0)]
    deal.delivered(0, 1, 51.0)
    deal.answered(0, 0, 52.0)
    assert deal.due(60.0) == []
    deal.settled(0, ONE, 70.0)
    assert deal.due(71.0) == [(0, 0)], "told again, behind the acknowledgment"
    assert deal.due(72.0) == []
    deal.answered(0, 0, 73.0)
    assert deal.due(74.0) == [(1, 1)]


@pytest.mark.feature("Q5")
def test_what_is_never_settled_keeps_no_credit_beyond_its_lease() -> None:
    deal = Credits(2, 1, idle_ms=50)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    deal.delivered(0, 1, 10.0, 900)
    deal.renewed(0, 900, 1_000)
    deal.end_leases(999, 20.0)
    assert deal.outstanding == [1, 0]
    deal.end_leases(1_000, 20.0)
    assert deal.outstanding == [0, 0]
    assert deal.due(70.0) == [(0, 0)]
    deal.renewed(0, 1_000, 2_000)  # the answer was on its way
    deal.answered(0, 0, 71.0)
    assert deal.due(72.0) == [], "it is held after all"
    deal.delivered(0, 1, 73.0, 2_500)
    deal.settled(0, {1_000: 1}, 73.0)
    assert deal.outstanding == [2, 0], "what is settled too late frees nothing"
    deal.settled(0, {2_500: 1}, 73.0)
    deal.end_leases(2_000, 73.0)
    for grant in deal.due(74.0):
        deal.answered(grant.shard, grant.credit, 74.0)
    assert deal.due(75.0) == [(1, 1)]


@pytest.mark.feature("Q3")
def test_a_lease_that_is_being_renewed_is_not_over_before_the_answer() -> None:
    deal = Credits(2, 1, idle_ms=50)
    for grant in deal.due(0.0):
        deal.answered(grant.shard, grant.credit, 0.0)
    assert deal.due(50.0) == [(0, 0)]
    deal.delivered(0, 1, 51.0, 100)
    deal.answered(0, 0, 52.0)
    deal.renewing(0, {100: 1})
    deal.end_leases(100, 101.0)
    assert deal.due(101.0) == [], "the shard may have renewed it"
    deal.renewed(0, 100, 300)
    deal.renewal_answered(0, {100: 1})
    deal.renewing(0, {300: 1})
    deal.end_leases(301, 301.0)
    assert deal.outstanding == [1, 0]
    deal.renewal_answered(0, {300: 1})  # refused: it came too late
    deal.end_leases(301, 301.0)
    assert deal.outstanding == [0, 0]


@pytest.mark.feature("Q5")
def test_a_long_lease_hides_no_shorter_one_that_is_over() -> None:
    deal = Credits(1, 3)
    deal.delivered(0, 1, 0.0, 9_000)
    deal.delivered(0, 2, 0.0, 1_000)
    deal.end_leases(1_000, 0.0)
    assert deal.outstanding == [1]
    deal.renewed(0, 9_000, 500)  # a renewal may shorten a lease
    deal.end_leases(1_001, 0.0)
    assert deal.outstanding == [0]


def test_a_lost_shard_is_reported_again() -> None:
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
        deal.settled(shard, ONE, 1.0)
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
    """Shards that deliver whatever their credit allows, with commands and answers in flight.

    A shard ends leases at their instants. The application renews some, and settles others, in time or too late.
    """

    @initialize(shards=st.integers(1, 6), max_backlog=st.integers(0, 12))
    def begin(self, shards: int, max_backlog: int) -> None:
        self.credits = Credits(shards, max_backlog, idle_ms=50)
        self.now = 0.0
        self.asked: list[list[tuple[str, int]]] = [[] for _ in range(shards)]  # on their way: credits, and settlements
        self.back: list[list[tuple[str, int, float]]] = [[] for _ in range(shards)]  # records on their way back
        self.allowed = [0] * shards
        self.leased: list[dict[int, float]] = [
            {} for _ in range(shards)
        ]  # messages and their leases, as the shard says
        self.held: list[dict[int, float]] = [{} for _ in range(shards)]  # as the application: arrived and unsettled
        self.renewing: list[list[float]] = [[] for _ in range(shards)]  # ends of leases with a renewal on its way
        self.messages = 0
        self.any_ended = False  # whether a lease has
        self.visited: set[int] = set()

    def shard(self, number: int) -> int:
        return number % len(self.asked)

    @rule(ms=st.integers(0, 200))
    def time_passes(self, ms: int) -> None:
        self.now += ms
        for number, leased in enumerate(self.leased):
            self.any_ended |= any(ends <= self.now for ends in leased.values())
            self.leased[number] = {message: ends for message, ends in leased.items() if ends > self.now}
        self.credits.end_leases(self.now, self.now)
        for grant in self.credits.due(self.now):
            self.asked[grant.shard].append(("subscribe", grant.credit))

    @rule(count=st.integers(1, 3))
    def a_queue_joins(self, count: int) -> None:
        if len(self.asked) < 8:
            self.credits.grow(count)
            self.asked += [[] for _ in range(count)]
            self.back += [[] for _ in range(count)]
            self.allowed += [0] * count
            self.leased += [{} for _ in range(count)]
            self.held += [{} for _ in range(count)]
            self.renewing += [[] for _ in range(count)]

    @rule(first=st.integers(0, 7), count=st.integers(1, 3))
    def a_queue_is_deleted(self, first: int, count: int) -> None:
        gone = [shard for shard in range(first, first + count) if shard < len(self.asked)]
        self.credits.drop(gone)
        for shard in gone:  # what it sent may still be on its way; nothing is leased there
            self.asked[shard], self.allowed[shard], self.leased[shard] = [], 0, {}

    @rule(number=st.integers(0, 5))
    def shard_reads_a_command(self, number: int) -> None:
        shard = self.shard(number)
        if self.asked[shard]:
            kind, figure = self.asked[shard].pop(0)
            if kind == "subscribe":
                self.allowed[shard] = figure
                if figure:
                    self.visited.add(shard)
                self.back[shard].append(("answer", figure, 0))
            elif kind == "acknowledge":
                self.leased[shard].pop(figure, None)
            elif figure in self.leased[shard]:
                self.leased[shard][figure] = self.now + 150
                self.back[shard].append(("renewed", figure, self.now + 150))
            else:
                self.back[shard].append(("refused", figure, 0))

    @rule(number=st.integers(0, 5), lease_ms=st.sampled_from([50, 100, float("inf")]))
    def shard_delivers(self, number: int, lease_ms: float) -> None:
        shard = self.shard(number)
        if len(self.leased[shard]) < self.allowed[shard]:
            self.messages += 1
            self.leased[shard][self.messages] = self.now + lease_ms
            self.back[shard].append(("delivery", self.messages, self.now + lease_ms))

    @rule(number=st.integers(0, 5))
    def record_arrives(self, number: int) -> None:
        shard = self.shard(number)
        if self.back[shard]:
            kind, figure, ends = self.back[shard].pop(0)
            if kind == "delivery":
                self.held[shard][figure] = ends
                self.credits.delivered(shard, 1, self.now, ends)
            elif kind == "answer":
                self.credits.answered(shard, figure, self.now)
            else:
                if kind == "renewed" and figure in self.held[shard]:
                    self.credits.renewed(shard, self.held[shard][figure], ends)
                    self.held[shard][figure] = ends
                self.credits.renewal_answered(shard, {self.renewing[shard].pop(0): 1})

    @rule(number=st.integers(0, 5), last=st.booleans())
    def application_settles(self, number: int, last: bool) -> None:
        shard = self.shard(number)
        if held := list(self.held[shard]):
            message = held[-1 if last else 0]
            self.asked[shard].append(("acknowledge", message))
            self.credits.settled(shard, {self.held[shard].pop(message): 1}, self.now)

    @rule(number=st.integers(0, 5), last=st.booleans())
    def application_renews(self, number: int, last: bool) -> None:
        shard = self.shard(number)
        if held := list(self.held[shard]):
            message = held[-1 if last else 0]
            self.asked[shard].append(("renew", message))
            self.renewing[shard].append(self.held[shard][message])
            self.credits.renewing(shard, {self.renewing[shard][-1]: 1})

    @invariant()
    def never_more_than_the_backlog(self) -> None:
        if hasattr(self, "credits"):
            assert sum(map(len, self.leased)) <= self.credits.max_backlog
            # What came late counts until its end is noted, so there may be more for a while.
            assert self.credits.total() <= self.credits.max_backlog or self.any_ended

    def teardown(self) -> None:
        """Every shard gets its turn, though nothing is settled that has a lease."""
        if not hasattr(self, "credits"):
            return
        self.visited.clear()
        there = set(range(len(self.asked))) - self.credits._gone
        waited = there if self.credits.travelling else set()
        for _ in range(60):
            for shard in there:
                self.settle_what_has_no_lease(shard)
                while self.back[shard] or self.asked[shard]:
                    self.record_arrives(shard)
                    self.settle_what_has_no_lease(shard)
                    self.shard_reads_a_command(shard)
            if self.visited >= waited and not any(self.credits.outstanding):
                return
            Traffic.time_passes(self, 200)
            self.never_more_than_the_backlog()
        raise AssertionError((self.visited, self.credits.outstanding))

    def settle_what_has_no_lease(self, shard: int) -> None:
        for message in [message for message, ends in self.held[shard].items() if ends == float("inf")]:
            self.asked[shard].append(("acknowledge", message))
            self.credits.settled(shard, {self.held[shard].pop(message): 1}, self.now)


class NarrowTraffic(Traffic):
    """Two shards and one credit: what takes many steps in a certain order is found."""

    @initialize(shards=st.just(2), max_backlog=st.just(1))
    def begin(self, shards: int, max_backlog: int) -> None:
        super().begin(shards, max_backlog)

    @rule(ms=st.just(50))
    def time_passes(self, ms: int) -> None:
        super().time_passes(ms)

    @rule(lease_ms=st.sampled_from([100, float("inf")]))
    def shards_deliver(self, lease_ms: float) -> None:
        for number in range(2):
            self.shard_delivers(number, lease_ms)

    @rule(number=st.integers(0, 1))
    def records_arrive(self, number: int) -> None:
        while self.back[number]:
            self.record_arrives(number)

    def a_queue_joins(self, count: int) -> None: ...

    def a_queue_is_deleted(self, first: int, count: int) -> None: ...


TestTraffic = Traffic.TestCase
TestNarrowTraffic = NarrowTraffic.TestCase

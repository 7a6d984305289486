"""What is worked on together comes out as it does one by one: settlements, the order of priorities, deliveries."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.expression import compile_value
from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import Flag, TraitReader, Traits
from lapse.core.queue.delivery.choice import Chooser
from lapse.core.queue.delivery.fairness import Turns
from lapse.core.queue.delivery.retry import NO_RETRY, RetryRule
from lapse.core.queue.journal.packed_segment import encode
from lapse.core.queue.segments.segment import Segment, slots_of, where_of
from lapse.core.queue.settings import Fairness, Leasing, QueueSettings, Semantics
from lapse.core.queue.settlement.claim_columns import ClaimColumns
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from unit.core.queue.compared.small_shard import small

NOW_MS = 1_000_000
COUNT = 24
PRICES = st.lists(st.one_of(st.integers(0, 3), st.none()), min_size=COUNT, max_size=COUNT)
TTLS_MS = st.lists(st.sampled_from([0, 0, 5, 50]), min_size=COUNT, max_size=COUNT)
SETTINGS = st.fixed_dictionaries(
    {
        "leasing": st.sampled_from(Leasing),
        "target_depth": st.sampled_from([None, 12]),
        "semantics": st.just(Semantics.AT_LEAST_ONCE),
        "max_cancels": st.sampled_from([0, 0, 1]),
        "max_deliveries": st.sampled_from([0, 0, 1]),
        "retry": st.sampled_from([NO_RETRY, RetryRule(30, 2.0, 100, 0.2)]),
    }
)
CLAIMS = st.lists(
    st.builds(
        lambda first, more, token: Claim("orders", 0, first, first + more, token),
        st.integers(0, COUNT + 3),
        st.integers(0, 3),
        st.sampled_from([None, 1, 1, 1, 2, 1 << 40]),
    ),
    max_size=16,
)


def shard_of(
    prices: list[int | None], ttls_ms: list[int], subscribers: tuple[str, ...] = ("inky", "blinky"), **settings: object
) -> QueueShard:
    """A shard with messages, gaps between their offsets, and subscriptions that hold some of them."""
    traits = TraitReader(priority=compile_value("/p")) if settings.get("target_depth") is None else TraitReader()
    shard = QueueShard(
        QueueSettings(name="orders", lease_ms=100, expiration=Expiration(enabled=True), traits=traits, **settings)
    )
    records = [
        SimpleNamespace(
            offset=offset + offset // 9,
            timestamp=NOW_MS,
            key=None,
            value=b"{}" if price is None else b'{"p": %d}' % price,
            headers=[("lapse-ttl-ms", b"%d" % ttl_ms)],
        )
        for offset, (price, ttl_ms) in enumerate(zip(prices, ttls_ms, strict=True))
    ]
    shard.arrive("orders", 0, records[: shard.room()], Step())
    for name in subscribers:
        shard.subscribing.subscribe(name, name, 7, 60_000, "", NOW_MS, Step())
    while shard.deliver(NOW_MS, Step()):
        pass
    return shard


def emitted(step: Step) -> dict[tuple[object, ...], list[tuple[int, int]]]:
    """What a step tells, message by message; each fate in its order, for all are of one instant."""
    events = [(one.kind, one.subscription, one.messages) for one in step.events]
    removals = [(one.reasons, one.subscription, one.messages) for one in step.removals]
    found: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for kind, whose, messages in (*events, *removals):
        if messages is not None:
            each = zip(messages.offsets.tolist(), messages.deliveries.tolist(), strict=True)
            found.setdefault((kind, whose), []).extend(each)
    return found


def stands(shard: QueueShard) -> tuple[object, ...]:
    """Everything that the shard holds."""
    segments = {index: encode(segment) for index, segment in shard.state.segments.items()}
    outstanding = {one.id: one.outstanding for one in shard.state.subscriptions.values()}
    return segments, outstanding, shard.depth(), shard.next_due_ms()


@pytest.mark.feature("Q8", "C13", "C16", "C17")
@given(PRICES, TTLS_MS, SETTINGS, CLAIMS, st.sampled_from(SettleAction), st.integers(0, 120))
def test_claims_settled_together_come_out_as_one_by_one(prices, ttls_ms, settings, claims, action, later_ms) -> None:
    def settled(shard: QueueShard, now_ms: int, step: Step) -> object:
        if action is SettleAction.RENEW:
            return shard.renew("inky", claims, now_ms, step)
        return shard.settle(action, "inky", claims, now_ms, step)

    with small(size=8):
        shards = [shard_of(prices, ttls_ms, **settings) for _ in range(2)]
        now_ms, steps = NOW_MS + later_ms, [Step(), Step()]
        together = settled(shards[0], now_ms, steps[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClaimColumns, "end_of_run", lambda _self, at, _behind: at + 1)
            alone = settled(shards[1], now_ms, steps[1])
        assert together == alone
        assert emitted(steps[0]) == emitted(steps[1])
        assert stands(shards[0]) == stands(shards[1])


@pytest.mark.feature("Q8", "C60")
@pytest.mark.parametrize("action", [SettleAction.ACKNOWLEDGE, SettleAction.CANCEL, SettleAction.EXPIRE])
def test_scattered_messages_of_a_segment_are_settled_at_once(action: SettleAction) -> None:
    """One by one, fifty thousand that a filter finds held everybody up for more than a second."""
    shard = shard_of([None] * COUNT, [0] * COUNT)
    claims = [Claim("orders", 0, at, at, found=True) for at in range(0, COUNT, 2) if at % 10 != 9]
    step = Step()
    outcomes = shard.settle(action, "inky", claims, NOW_MS, step)
    assert len(outcomes) == len(claims)
    assert len({one.first for one in outcomes if one.result == "settled"}) > 5
    assert len(step.events) + len(step.removals) <= 4, "the pieces between gaps"


@pytest.mark.slow
@pytest.mark.feature("Q11", "Q7")
@given(
    PRICES,
    TTLS_MS,
    st.lists(st.integers(0, COUNT), max_size=12),
    st.integers(1, COUNT),
    st.sampled_from(Fairness),
    st.integers(0, 60),
)
def test_the_first_by_priority_are_those_of_the_general_way(prices, ttls_ms, gone, most, fairness, later_ms) -> None:
    with small(size=5):
        shard = shard_of(prices, ttls_ms, fairness=fairness)
        for offset in gone:
            shard.settle(SettleAction.EXPIRE, "inky", [Claim("orders", 0, offset, offset)], NOW_MS, Step())
        shard.subscribing.subscribe("clyde", "clyde", most, 60_000, "", NOW_MS, Step())
        clyde = shard.state.subscriptions["clyde"]

        def chooser() -> Chooser:
            return Chooser(
                shard.state, shard.matching, shard.settings, Turns(shard.settings.fairness), NOW_MS + later_ms
            )

        dealt = [places for _, places in chooser().assign([clyde], most)]
        assert chooser().first_places(most) == (dealt[0] if dealt else [])


@pytest.mark.feature("Q11", "Q14")
@given(PRICES, st.integers(1, COUNT), st.integers(2, COUNT))
def test_deliveries_are_in_the_order_of_priorities_whatever_is_handed_out_together(prices, backlog, at_once) -> None:
    with small(size=9, at_once=at_once):
        shard = shard_of(prices, [0] * COUNT, subscribers=())
        shard.subscribing.subscribe("inky", "inky", backlog, 60_000, "", NOW_MS, Step())
        step = Step()
        while shard.deliver(NOW_MS, step):
            pass
        offsets = [offset for delivery in step.deliveries for offset in delivery.messages.offsets.tolist()]
        wanted = sorted(range(COUNT), key=lambda at: (prices[at] is None, -(prices[at] or 0), at))
        assert offsets == [at + at // 9 for at in wanted[:backlog]]


@pytest.mark.feature("Q11")
@given(st.lists(st.lists(st.one_of(st.integers(0, 2), st.sampled_from([1 << 63, (1 << 64) - 1]), st.none()))))
def test_the_order_of_ranks_grows_with_what_comes(batches) -> None:
    segment = Segment(0)
    ranks: list[int | None] = []
    for batch in batches:
        first, ranks = len(ranks), ranks + batch
        column = np.array([rank or 0 for rank in batch], np.uint64)
        flags = np.array([0 if rank is None else Flag.RANKED for rank in batch], np.uint8)
        segment.used = len(ranks)
        segment.set_traits(first, len(ranks), Traits(column, flags))
        wanted = sorted(range(len(ranks)), key=lambda slot: (ranks[slot] is None, -(ranks[slot] or 0), slot))
        assert segment.rank_order().tolist() == wanted
        assert [segment.key(slot) for slot in wanted] == sorted(segment.key(slot) for slot in wanted)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1))
def test_places_of_many_cuts_are_those_of_each(steps) -> None:
    cuts, at = [], 0
    for gap, count in steps:
        cuts.append((at + gap, at + gap + count))
        at += gap + count
    assert slots_of(where_of(cuts)).tolist() == [slot for first, stop in cuts for slot in range(first, stop)]

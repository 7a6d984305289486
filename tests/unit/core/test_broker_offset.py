"""What timestamps of the broker say of its clock: never wrong by more than they can show, and the same for all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.broker_offset import DRIFT, BrokerOffset
from lapse.runtime.timers.clock import WorkerClock
from lapse_client.kafka import clock as client
from lapse_client.kafka.clock import ClientClock

pytestmark = pytest.mark.feature("C3", "L13")

EPOCH_MS = 1_700_000_000_000

trips = st.lists(
    st.tuples(
        st.integers(0, 2_000),  # quiet before it
        st.floats(0, 500),  # on its way
        st.floats(0, 500),  # back
        st.sampled_from([0.0] * 8 + [-60_000.0, 90_000.0]),  # a step of the broker's clock before it
    ),
    min_size=1,
    max_size=30,
)


def records(trips: list[tuple[int, float, float, float]]) -> list[tuple[float, int, float, float]]:
    """Of each trip: sent, stamped and acknowledged, and the true offset."""
    own_ms, ahead_ms, made = 50_000.0, float(EPOCH_MS), []
    for quiet_ms, there_ms, back_ms, step_ms in trips:
        own_ms, ahead_ms = own_ms + quiet_ms, ahead_ms + step_ms
        sent_ms = own_ms
        stamp_ms = int(own_ms + there_ms + ahead_ms)
        own_ms += there_ms + back_ms
        made.append((sent_ms, stamp_ms, own_ms, ahead_ms))
    return made


@given(trips)
def test_it_is_never_wrong_by_more_than_it_says_whatever_steps(trips: list[tuple[int, float, float, float]]) -> None:
    offset = BrokerOffset()
    assert offset.uncertainty_ms == float("inf")
    for sent_ms, stamp_ms, acknowledged_ms, true_ms in records(trips):
        offset.observe(sent_ms, stamp_ms, acknowledged_ms)
        assert offset.measured_at_ms is not None
        aged_ms = (acknowledged_ms - offset.measured_at_ms) * DRIFT
        assert abs(offset.offset_ms - true_ms) <= offset.uncertainty_ms + aged_ms + 0.01


@given(trips)
def test_the_clocks_of_worker_and_client_show_the_same(trips: list[tuple[int, float, float, float]]) -> None:
    """`lapse.runtime.timers.clock.WorkerClock` and `lapse_client.kafka.clock.ClientClock` measure by one rule."""
    now_ms = 0.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client, "elapsed_ms", lambda: now_ms)
        of_client = ClientClock(lambda: 5.0)
        of_worker = WorkerClock(10**9, lambda: now_ms / 1000, lambda: 7.0)
        assert not of_client.is_measured
        assert not of_worker.is_measured
        for sent_ms, stamp_ms, acknowledged_ms, _ in records(trips):
            now_ms = acknowledged_ms
            of_client.observe(sent_ms, stamp_ms, acknowledged_ms)
            before_ms = of_worker.now_ms() if of_worker.is_measured else 0
            of_worker.measured(sent_ms / 1000, acknowledged_ms / 1000, stamp_ms)
            stepped_back = of_client.now_ms() < before_ms - 1_000
            # The worker's never goes back by a little: it stands until it is caught up with.
            expected = of_client.now_ms() if stepped_back else max(before_ms, of_client.now_ms())
            assert of_worker.now_ms() == pytest.approx(expected, abs=1.01)

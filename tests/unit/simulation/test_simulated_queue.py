"""A queue in virtual time: it does what theory, the contract and the core's own rules say."""

from __future__ import annotations

from typing import Any

import pytest

from lapse.config import QueueConfig
from lapse.simulation.arrival import BEGIN_MS, Arrival, Arrivals, Record, drawn
from lapse.simulation.crew import Crew
from lapse.simulation.distribution import distribution, pace
from lapse.simulation.outcome import Outcome
from lapse.simulation.simulated_queue import SimulatedQueue

pytestmark = pytest.mark.feature("X10")


def run(
    arrivals: Arrivals, subscribers: int, service: str, backlog: int = 1, cancels: float = 0.0, **settings: Any
) -> Outcome:
    config = QueueConfig.model_validate(settings)
    return SimulatedQueue("q", config, arrivals, Crew(subscribers, backlog, distribution(service), cancels), 1).run()


def every(gap: str, most: int, partitions: int = 1, lifetime: str = "") -> Arrivals:
    return drawn("q", partitions, pace(gap), most, None, distribution(lifetime) if lifetime else None, 1)


@pytest.mark.slow
def test_waits_are_those_of_the_theory_of_queues() -> None:
    """M/M/4 at 75 %: by Erlang's formula a message waits 101.9 ms on average, 50.94 % of them at all."""
    found = run(every("poisson:15/s", 15_000), 4, "exponential:200ms")
    waits = found.waits
    assert waits is not None
    assert found.served == 15_000
    assert waits.mean == pytest.approx(101.9, rel=0.2)
    assert float((found.begun_ms > found.came_ms).mean()) == pytest.approx(0.509, abs=0.05)
    assert found.busy_share(4) == pytest.approx(0.75, abs=0.03)


def test_without_a_consumer_everything_expires_at_its_deadline() -> None:
    found = run(every("10ms", 50), 0, "1s", expiration="3s")
    assert found.counts == {"time_limit": 50}
    assert (found.ended_ms - found.came_ms == 3_000).all()
    assert found.deepest == 50
    assert found.waits is None


@pytest.mark.slow
def test_a_consumer_that_is_too_slow_serves_what_has_not_expired() -> None:
    """One message each 100 ms, 250 ms of work and 300 ms to live: a message is leased within 300 ms, or expires."""
    found = run(every("100ms", 1_000), 1, "250ms", expiration="300ms")
    assert found.served == pytest.approx(400, abs=3)
    assert found.counts["time_limit"] == 1_000 - found.served
    assert int((found.begun_ms - found.came_ms).max()) < 300


def test_a_lease_that_is_too_short_kills_messages_by_their_deliveries() -> None:
    found = run(every("1s", 10), 1, "150ms", lease_period="100ms", max_deliveries=3, leasing="strict")
    assert found.counts == {"max_deliveries": 10}
    assert found.deliveries == found.lapsed == 30
    assert (found.in_vain, found.dropped) == (20, 10)  # the third lease is over before the second piece of work is
    late = run(every("1s", 10), 1, "150ms", lease_period="100ms", max_deliveries=3)
    assert late.counts == {"acknowledged": 10}  # a late acknowledgment counts, unless leases are strict (C13)
    assert late.deliveries == 20


def test_what_waits_at_a_consumer_until_its_lease_is_over_is_dropped_there() -> None:
    found = run(every("1ms", 20), 1, "40ms", backlog=20, lease_period="100ms")
    assert found.served == 20
    assert found.dropped > 0
    assert found.lapsed == found.dropped + found.in_vain


@pytest.mark.slow
def test_a_late_acknowledgment_makes_room_at_the_consumer_that_has_the_message_now() -> None:
    """The first lease lapses at 50 ms, and the other consumer gets the message. At 70 ms the first acknowledges it."""
    times = (0, 60, 65)
    some = [Arrival(BEGIN_MS + at, "q", 0, Record(n, BEGIN_MS + at, None, b"{}", ())) for n, at in enumerate(times)]
    found = run(Arrivals(some, 1), 2, "70ms", lease_period="50ms")
    assert (found.first_ms - BEGIN_MS).tolist() == [0, 60, 70]


def test_cancels_count_and_limits_end_them() -> None:
    found = run(every("10ms", 200), 4, "10ms", cancels=1.0, max_cancels=2)
    assert found.counts == {"max_cancels": 200}
    assert found.cancelled == 600  # the third cancel of each takes it out
    half = run(every("10ms", 2_000), 4, "10ms", cancels=0.5)
    assert half.served == 2_000
    assert half.deliveries == pytest.approx(4_000, rel=0.1)


@pytest.mark.slow
def test_messages_that_go_round_for_ever_are_noticed() -> None:
    assert run(every("10ms", 5), 1, "10ms", cancels=1.0).endless


@pytest.mark.parametrize("ordering", ["partition", "total"])
def test_a_backlog_counts_over_all_partitions(ordering: str) -> None:
    arrivals = drawn("q", 4, pace("1ms"), 400, None, None, 1)
    found = run(arrivals, 2, "10ms", backlog=3, ordering=ordering, partitions=4)
    assert found.served == 400
    handed_out_ms, ended_ms = found.first_ms, found.ended_ms
    most = max(int(((handed_out_ms <= at_ms) & (ended_ms > at_ms)).sum()) for at_ms in handed_out_ms)
    assert most == 6
    assert found.ended_at_ms - found.began_ms == pytest.approx(2_000, abs=20)  # two work all the time


def test_room_that_the_end_of_a_lease_makes_is_room_for_messages_of_all_partitions() -> None:
    found = run(every("1ms", 2, partitions=2), 1, "1s", lease_period="100ms", max_deliveries=1)
    assert found.counts == {"max_deliveries": 2}
    assert int(found.first_ms[1] - found.first_ms[0]) == 100  # not when the consumer has finished the first one


def test_at_most_once_and_a_target_depth_serve_everything_in_order() -> None:
    once = run(every("5ms", 100), 1, "10ms", semantics="at-most-once")
    assert once.counts == {"delivered_at_most_once": 100}
    deep = run(every("1ms", 300), 1, "10ms", target_queue_depth=5)
    assert deep.served == 300
    assert (deep.begun_ms[1:] > deep.begun_ms[:-1]).all()


def test_headers_priorities_and_groups_of_messages_count() -> None:
    def at(offset: int, at_ms: int, value: str, **headers: str) -> Arrival:
        stated = [(name.replace("_", "-"), text.encode()) for name, text in headers.items()]
        return Arrival(at_ms, "q", 0, Record(offset, at_ms, None, value.encode(), stated))

    some = [
        at(0, 1_000, '{"p": 1}'),
        at(1, 1_001, '{"p": 2}', lapse_ttl_ms="5"),
        at(2, 1_001, '{"p": 9}'),
        at(3, 1_001, '{"p": 5}', lapse_enqueue_at_ms="1050"),
    ]
    found = run(Arrivals(some, 1), 1, "20ms", expiration="enabled", priority="/p")
    assert found.begun_ms.tolist() == [1_000, -1, 1_020, 1_050]
    assert found.counts == {"acknowledged": 3, "time_limit": 1}
    group = [at(offset, 1_000, '{"g": "a"}') for offset in range(3)]
    one_by_one = run(Arrivals(group, 1), 3, "20ms", group_by="/g")
    assert one_by_one.begun_ms.tolist() == [1_000, 1_020, 1_040]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run() -> None:
    arrivals = every("poisson:30/s", 2_000, 2, "exponential:1s")
    first, again = (
        run(arrivals, 3, "exponential:100ms", 5, 0.1, expiration="enabled", lease_period="400ms") for _ in range(2)
    )
    assert first.facts(3) == again.facts(3)
    assert (first.ended_ms == again.ended_ms).all()
    assert first.course() == again.course()


def test_the_course_adds_up() -> None:
    found = run(every("poisson:20/s", 1_000), 2, "exponential:90ms", expiration="1s")
    course = found.course(10)
    assert sum(map(sum, course.fates.values())) == 1_000
    assert course.depth[-1] == 0
    assert len(course.at_ms) == len(course.depth) == 10


def test_a_run_begins_with_its_first_message_even_if_that_is_scheduled_for_later() -> None:
    """It began when the message was due, so that what came before was left out, and consumers seemed to be busy."""
    due = (("lapse-enqueue-at-ms", b"%d" % (BEGIN_MS + 3_600_000)),)
    some = [Arrival(BEGIN_MS, "q", 0, Record(0, BEGIN_MS, None, b"{}", due))]
    some += [Arrival(BEGIN_MS + at, "q", 0, Record(at, BEGIN_MS + at, None, b"{}", ())) for at in range(1, 11)]
    found = run(Arrivals(some, 1), 1, "1s")
    assert (found.served, found.began_ms) == (11, BEGIN_MS)
    assert found.deepest == 10, "a scheduled message is not in the queue yet"
    assert found.busy_share(1) == pytest.approx(11 / 3_601, rel=0.01)
    course = found.course(10)
    assert course.at_ms[0] == BEGIN_MS
    assert min(course.depth) >= 0
    assert sum(course.fates["acknowledged"]) == 11

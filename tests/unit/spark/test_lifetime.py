import pytest

from lapse_spark import lifetime, local_rows

pytestmark = [pytest.mark.spark, pytest.mark.feature("D6")]

COLUMNS = (
    "entity string, topic string, partition int, offset long, arrived_at_ms long, reached_at_ms long, fate_at_ms long, "
    "lived_ms long, reasons string"
)


@pytest.fixture
def history(spark):
    """Messages with their arrival, when they were handed out, or when they expired."""

    def make(*messages, partition=0):
        rows = []
        for offset, (arrived, reached, expired) in enumerate(messages):
            end = expired if reached is None else reached
            lived = None if end is None else end - arrived
            reasons = "" if expired is None else "time_limit"
            rows.append(("q", "orders", partition, offset, arrived, reached, end, lived, reasons))
        return local_rows.frame(spark, rows, COLUMNS)

    return make


def by_offset(missing):
    return {row["offset"]: row["needed_ms"] for row in missing.collect()}


def test_a_burst_needs_as_long_as_it_takes_to_hand_it_out(history):
    """A thousand messages at once, ten a second, 30 s to live: 45 s serve 150 more of the 700 that expired."""
    burst = [(0, 100 * place, None) if place <= 300 else (0, None, 30_000) for place in range(1, 1001)]
    missing = lifetime.needed_lifetimes(history(*burst)).persist()
    assert by_offset(missing)[999] == pytest.approx(100_000, rel=0.01)
    (row,) = lifetime.what_if(missing, [45_000]).collect()
    assert (row["lifetime_ms"], row["instead_of_ms"], row["expired"]) == (45_000, 30_000, 700)
    assert row["served"] == pytest.approx(150, abs=2)
    rows = lifetime.what_if(missing).collect()
    assert [row["lifetime_ms"] for row in rows] == [45_000, 60_000, 90_000, 150_000, 300_000]
    assert [row["share"] for row in rows] == sorted(row["share"] for row in rows)
    assert rows[-1]["share"] == 1.0


def test_a_time_without_consumers_is_waited_for(history):
    """Ten at 0 s, nobody from 1 s on, consumers again at 60 s: what expired at 30 s needed that long."""
    served = [(10 * place, 10 * place + 1, None) for place in range(10)]
    away = [(2_000 + place, None, 32_000 + place) for place in range(5)]
    again = [(60_000 + 10 * place, 60_001 + 10 * place, None) for place in range(10)]
    found = by_offset(lifetime.needed_lifetimes(history(*served, *away, *again)))
    assert sorted(found) == [10, 11, 12, 13, 14]
    assert all(58_000 - 5 <= need <= 58_100 for need in found.values())


def test_no_lifetime_is_enough_where_more_comes_than_goes(history):
    """Two a second arrive, one a second is taken: each lifetime is too short in the end."""
    messages, free = [], 0
    for place in range(400):
        arrived = 500 * place
        start = max(free, arrived)
        if start - arrived > 10_000:
            messages.append((arrived, None, arrived + 10_000))
        else:
            messages.append((arrived, start, None))
            free = start + 1_000
    missing = lifetime.needed_lifetimes(history(*messages)).persist()
    needs = by_offset(missing)
    first, last = min(needs), max(needs)
    assert needs[last] > 5 * needs[first]
    (row,) = lifetime.what_if(missing, [20_000]).collect()
    assert row["share"] < 0.25


def test_what_nobody_took_afterwards_has_no_lifetime_that_is_enough(history):
    missing = lifetime.needed_lifetimes(history((0, 5, None), (10, None, 40_000)))
    assert by_offset(missing) == {1: None}
    (row,) = lifetime.what_if(missing, [10**9, 10**9]).collect()  # asked for twice, told once
    assert (row["expired"], row["served"], row["share"]) == (1, 0, 0.0)


def test_the_sentence():
    text = "orders.work: at 45 s instead of 30 s, 92% of the 1,204 expired would have been served"
    assert lifetime.sentence("orders.work", 45_000, 30_000, 1_204, 0.921) == text
    assert [lifetime.shown(ms) for ms in (20, 1_500, 90_000, 180_000, 5_400_000, 36 * 3_600_000)] == [
        "20 ms",
        "1.5 s",
        "90 s",
        "3 min",
        "1.5 h",
        "1.5 d",
    ]

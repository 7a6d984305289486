"""The quick way through the common records says what `lapse.core.lifetime` says."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core import letter, lifetime
from lapse.core.lifetime import Expiration, ExpirationModel, InvalidLifetime
from lapse.core.queue.arrival.arrival import classify_records
from unit.core.queue.expected.message import Published

INT64 = 2**63 - 1
VALUES = st.one_of(
    st.sampled_from([b"", b"0", b"00", b"007", b"-1", b"+1", b" 1", b"1 ", b"1_0", b"1e3", "١".encode(), None]),
    st.sampled_from([b"%d" % (INT64 + by) for by in (-1, 0, 1)] + [b"9" * 18, b"9" * 19, b"0" * 19, b"0" * 20]),
    st.integers(0, 10**6).map(lambda number: b"%d" % number),
    st.binary(max_size=9),
)
NAMES = st.sampled_from([*sorted(lifetime.NAMES), "trace", "lapse-redrive-queue", "Lapse-Ttl-Ms", "lapse-id"])
HEADERS = st.one_of(
    st.tuples(st.sampled_from(["lapse-ttl-ms", "lapse-expires-at-ms", "lapse-enqueue-at-ms"]), VALUES).map(
        lambda header: [header]
    ),
    st.lists(st.tuples(NAMES | st.just("lapse-ttl-ms"), VALUES), max_size=3),
)
TIMESTAMPS = st.sampled_from([-1, 0, 1, 1_700_000_000_000, INT64 - 10, INT64 - 1])
ALIKE = st.builds(
    lambda headers, timestamps: [(headers, timestamp) for timestamp in timestamps],
    HEADERS,
    st.lists(TIMESTAMPS, min_size=16, max_size=18),
)
"""Enough records with the same headers to be looked at together."""
EXPIRATIONS = st.builds(
    Expiration,
    st.booleans(),
    st.none() | st.sampled_from([0, 1, 1_000, 10**6, INT64 - 1]),
    st.sampled_from(ExpirationModel),
)


def by_the_book(record: Published, expiration: Expiration) -> tuple:
    for name, value in record.headers:
        if name == "lapse-redrive-queue" and value != b"orders" and not letter.is_letter(record.headers):
            return ("skipped",)
    try:
        stated = lifetime.read(record.headers, record.timestamp)
        deadline_ms = lifetime.deadline_ms(stated, record.timestamp, expiration)
    except InvalidLifetime as fault:
        return ("invalid", str(fault))
    if expiration.enabled and deadline_ms <= record.timestamp:
        return ("expired", deadline_ms)
    if stated.enqueue_at_ms is not None and stated.enqueue_at_ms > record.timestamp:
        return ("scheduled", stated.enqueue_at_ms, deadline_ms)
    return ("entered", deadline_ms)


@pytest.mark.feature("L1", "L2", "L3", "L4", "L5", "L7", "L12", "C6", "C7", "C8", "C9", "C29")
@given(st.lists(st.tuples(HEADERS, TIMESTAMPS), max_size=6) | ALIKE, EXPIRATIONS)
def test_every_record_becomes_what_its_headers_say(expected: list, expiration: Expiration) -> None:
    records = [Published(offset, timestamp, headers) for offset, (headers, timestamp) in enumerate(expected)]
    arrivals = classify_records(records, "orders", expiration)
    became: dict[int, tuple] = dict.fromkeys(range(len(records)), ("skipped",))
    became.update({o: ("entered", d) for o, d in zip(arrivals.offsets, arrivals.deadlines_ms, strict=True)})
    became.update({one.offset: ("scheduled", one.at_ms, one.deadline_ms) for one in arrivals.scheduled})
    became.update({o: ("invalid", fault) for o, fault in arrivals.invalid})
    became.update({o: ("expired", d) for o, d in arrivals.expired})
    assert became == {record.offset: by_the_book(record, expiration) for record in records}
    assert arrivals.offsets == sorted(arrivals.offsets)


@given(st.sets(st.integers(0, 40)).map(sorted))
def test_runs_are_the_consecutive_offsets(offsets: list[int]) -> None:
    arrivals = classify_records([Published(offset, 0) for offset in offsets], "orders", Expiration())
    runs = [offsets[first:stop] for first, stop in arrivals.runs()]
    assert [offset for run in runs for offset in run] == offsets
    assert all(run == list(range(run[0], run[0] + len(run))) for run in runs)
    assert all(after[0] > before[-1] + 1 for before, after in pairwise(runs))

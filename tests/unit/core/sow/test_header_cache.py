"""The quick path of plain updates does what `RecordUpdates.take_in` does, and cached headers mean what read ones do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER, Expiration, ExpirationModel, deadline_ms, read
from lapse.core.sow.arrival.header_cache import _KEPT, HeaderCache
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import Step
from lapse.protocol.command import Command
from unit.core.sow.make import Arrived, T, expiration, shard_of

INSTANTS = st.integers(-3, 40)
HEADERS = st.one_of(
    st.just(()),
    st.builds(lambda ms: (("lapse-ttl-ms", b"%d" % ms),), st.integers(0, 30)),
    st.builds(lambda ms: (("lapse-expires-at-ms", b"%d" % (T + ms)),), INSTANTS),
    st.sampled_from([(name, value) for name in ("trace", "", "ü") for value in (b"x", b"", None)]).map(
        lambda one: (one,)
    ),
    st.lists(
        st.sampled_from(
            [
                ("trace", b"x"),
                ("lapse-ttl-ms", b"7"),
                ("lapse-ttl-ms", b"nonsense"),
                ("lapse-ttl-ms", b"%d" % (NEVER - T)),
                ("lapse-expire-time", b"\0\0\0\5"),
                ("ce_expirytime", b"2023-11-14T22:13:20.020Z"),
                ("lapse-enqueue-at-ms", b"%d" % (T + 15)),
                ("lapse-command", b"delta"),
                ("lapse-redrive-queue", b"elsewhere"),
                ("lapse-origin", b"A"),
                ("lapse-origin-timestamp-ms", b"%d" % (T + 9)),
                ("lapse-unheard-of", b"1"),
            ]
        ),
        max_size=3,
    ).map(tuple),
)
RECORDS = st.tuples(
    st.sampled_from([b"a", b"b", None]), INSTANTS, st.sampled_from([b'{"x":1}', b'{"y":2}', b"{", None]), HEADERS
)


def effects_of(step: Step) -> tuple[object, ...]:
    return step.changes, step.state_deletes, step.events, step.letters, step.deliveries


def subscribed(shard: SowShard) -> SowShard:
    shard.commands.handle(Command(command="subscribe", id="s", subscription="s", filter="/x = 1"), T, Step())
    return shard


@pytest.mark.feature("S2", "L6", "L7", "L9", "C1")
@given(
    st.lists(st.tuples(st.sampled_from("tu"), st.lists(RECORDS, min_size=1, max_size=4)), max_size=8),
    st.none() | st.integers(0, 20),
    st.sampled_from(["override", "ceiling"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_the_plain_way_does_what_the_long_one_does(batches, default_ms, model, enabled, listens, remembers):
    make = lambda: shard_of(default_ms, model, enabled=enabled, remembers_removed=remembers)  # noqa: E731
    plain, long = (subscribed(make()) if listens else make() for _ in range(2))
    offset = 0
    for topic, batch in batches:
        records = []
        for key, at, value, headers in batch:
            records.append(Arrived(offset, T + at if at >= 0 else -1, key, value, headers))
            offset += 1
        quick, slow = Step(), Step()
        assert plain.arrive(topic, 0, records, quick) == len(records)
        source = long.state.source(topic, 0, slow)
        for record in records:
            long.state.now_ms = max(long.state.now_ms, record.timestamp)
            long._entrance._take(topic, 0, source, record, slow)
        assert effects_of(quick) == effects_of(slow)
    assert plain.state.entries == long.state.entries
    assert plain.state.tombstones == long.state.tombstones
    assert plain.state.sequence == long.state.sequence
    assert plain.state.now_ms == long.state.now_ms
    assert plain.next_due_ms() == long.next_due_ms()


def test_headers_that_are_never_the_same_are_not_kept_without_end():
    header_cache = HeaderCache(expiration())
    for number in range(3 * _KEPT):
        assert header_cache.meaning_of([("trace", b"%d" % number)]) is not None
        header_cache.meaning_of([("trace", b"x" * 1_000 + b"%d" % number)])
    assert 0 < len(header_cache._known) <= _KEPT
    assert all(len(headers[0][1]) < 100 for headers in header_cache._known)


@pytest.mark.feature("L6", "L7", "L9")
@given(
    HEADERS,
    st.integers(0, 1 << 60),
    st.sampled_from(ExpirationModel),
    st.none() | st.integers(0, 50) | st.just(NEVER - T),
)
def test_cached_headers_yield_the_deadline_that_the_rule_of_lifetimes_does(headers, at_ms, model, default_ms) -> None:
    """`HeaderCache.meaning_of` is the fast copy of `lifetime.read` and `lifetime.deadline_ms`."""
    one = Expiration(enabled=True, default_ms=default_ms, model=model)
    header_facts = HeaderCache(one).meaning_of(headers) if headers else HeaderCache(one).none
    if header_facts is None:
        return  # the long way decides
    _, absolute_ms, relative_ms = header_facts
    quick_ms = absolute_ms if relative_ms < 0 else min(absolute_ms, at_ms + relative_ms)
    if relative_ms >= 0 and at_ms + relative_ms >= NEVER:
        return  # beyond 64 bits: the long way says whether that is a fault
    assert quick_ms == deadline_ms(read(headers, at_ms), at_ms, one)

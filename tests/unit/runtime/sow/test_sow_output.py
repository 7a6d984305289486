"""The quick encoders of a SOW topic's output write what the plain one does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER
from lapse.core.sow import journal
from lapse.core.sow.arrival.origin import ORIGIN
from lapse.core.sow.records.record import Facts, pack, pack_headers
from lapse.core.sow.step import Kind, OutOfFocus, OutOfFocusBatch, StateDelete
from lapse.runtime.kafka import columns
from lapse.runtime.sow.output import SowOutput
from support.kafka.packed import rows_of
from support.suite.compiled import NEEDS_COLUMNS
from unit.core.sow.make import T, shard_of

HEADERS = st.lists(
    st.sampled_from([("own", b"x"), ("own", b"y"), ("ce_expirytime", b"2030-01-01T00:00:00Z"), ("lapse-ttl-ms", b"5")]),
    max_size=3,
)
RECORDS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3), HEADERS, st.integers(0, 9)), max_size=6)


@pytest.mark.feature("S7", "S8")
@given(RECORDS, st.booleans())
def test_the_three_encoders_of_a_record_write_the_same_headers(records, expires: bool) -> None:
    """`SowOutput._out_of_focus_batch` and `SowOutput.state` are fast copies of `SowOutput._messages`."""
    shard, output = shard_of(), SowOutput("prices", 0, 3, "", 1)
    sources = [("prices", 0), ("prices", 1)]
    shard.state.sources[:] = sources
    entries = {
        b"k%d%s" % (n, key): pack(
            Facts(T + at if expires else NEVER, T + at, n, 7 * n, n % 2, len(pack_headers(headers))),
            pack_headers(headers),
            value,
        )
        for n, (key, value, headers, at) in enumerate(records)
    }
    views = [shard.state.view(journal.RECORD + key, entry) for key, entry in entries.items()]
    plain = [view.message(Kind.OUT_OF_FOCUS, "s", reason=OutOfFocus.EXPIRED) for view in views]
    written = rows_of(output._messages(plain, sources))
    if expires:
        batch = rows_of(output._messages([OutOfFocusBatch("s", list(entries.items()))], sources))
        assert [(key, value, dict(headers)) for key, value, headers in batch] == [
            (key, value, dict(headers)) for key, value, headers in written
        ]
    state = output.state({journal.RECORD + key: entry for key, entry in entries.items()}, {}, sources)
    facts = [
        (key, value, [one for one in headers if one[0] not in ABOUT_THE_MESSAGE]) for key, value, headers in written
    ]
    assert rows_of(state.records) == facts


@pytest.mark.feature("S8")
@NEEDS_COLUMNS
@given(
    st.lists(st.tuples(st.binary(max_size=200), st.binary(max_size=300), st.integers(0, 1 << 40)), min_size=1),
    HEADERS | st.just([(ORIGIN, b'[["east","prices:0:7"]]')]),
    st.booleans(),
    st.none() | st.integers(0, 200),
)
def test_records_of_the_state_in_one_piece_are_those_one_by_one(records, headers, expires: bool, other) -> None:
    """`columns.c` packs them if all have the same headers; with others, or a tombstone, they are not in one piece."""
    output = SowOutput("prices", 0, 3, "", 1)
    sources = [("prices", 0), ("more-prices", 117)]
    block = pack_headers(headers)
    changes: list[tuple[bytes, bytes | None]] = [
        (
            journal.RECORD + b"%d" % n + key,
            pack(Facts(at if expires else NEVER, at, n, 7 * at, n % 2, len(block)), block, value),
        )
        for n, (key, value, at) in enumerate(records)
    ]

    def run(of: list[tuple[bytes, bytes | None]]) -> list[bytes] | None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lapse.runtime.sow.output._FEW", 1)
            found = output._run(of, sources)
        return None if found is None else list(found)

    assert run(changes) == output._one_by_one(changes, {}, sources)
    if expires:
        batch = OutOfFocusBatch("s", [(name[1:], entry) for name, entry in changes if entry is not None])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lapse.runtime.sow.output._FEW", 1)
            at_once = list(output._messages([batch], sources))
            patch.setattr(columns, "LIBRARY", None)
            assert at_once == output._messages([batch], sources)
    if other is not None:
        at = other % (len(changes) + 1)
        more = pack_headers([("another", b"header")])
        changes.insert(at, (journal.RECORD + b"x", pack(Facts(T, T, 1, 1, 0, len(more)), more, b"")))
        assert run(changes) is None
        changes[at] = (journal.RECORD + b"x", None)
        assert run(changes) is None


@pytest.mark.feature("S8", "S10")
def test_a_replicated_record_says_on_the_compacted_topic_where_it_was_published() -> None:
    block = pack_headers([(ORIGIN, b"east"), ("lapse-origin-bookmark", b"prices:0:7"), ("lapse-published-ms", b"1")])
    changes = {journal.RECORD + b"k": pack(Facts(NEVER, T, 1, 3, 0, len(block)), block, b"{}")}
    ((_, _, headers),) = rows_of(SowOutput("prices", 0, 3, "", 1).state(changes, {}, [("prices", 0)]).records)
    assert dict(headers) == {
        "lapse-bookmark": b"prices:0:3",
        "lapse-timestamp-ms": b"%d" % T,
        "lapse-origin": b"east",
        "lapse-origin-bookmark": b"prices:0:7",
    }
    removals = {journal.RECORD + b"k": StateDelete(OutOfFocus.EXPIRED, T, b"east", bookmark=b"prices:0:7")}
    ((_, _, headers),) = rows_of(
        SowOutput("prices", 0, 3, "", 1).state({journal.RECORD + b"k": None}, removals, []).records
    )
    assert dict(headers) == {
        "lapse-operation": b"expired",
        "lapse-timestamp-ms": b"%d" % T,
        "lapse-origin": b"east",
        "lapse-origin-bookmark": b"prices:0:7",
    }


ABOUT_THE_MESSAGE = {"lapse-kind", "lapse-subscription", "lapse-epoch", "lapse-operation", "lapse-reasons"}
"""Headers that a message for a subscriber has, and a record of the compacted topic has not."""

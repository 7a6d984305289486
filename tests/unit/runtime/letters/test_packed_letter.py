"""Packed letters have the headers that the protocol says, in its order (D2)."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.lifetime import EXPIRES_AT_MS, NEVER
from lapse.core.reason import UNCONFIRMED, Reason
from lapse.protocol import dead_letter, header
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import Death
from lapse.runtime.kafka.packed_record import packed, packed_headers
from lapse.runtime.letters.packed_letter import PackedLetters

NAMES = ["trace", "lapse-ttl-ms", EXPIRES_AT_MS, header.LAPSE_ID, header.DLQ_OFFSET, header.TRANSFER, "x"]
ALL_NAMES = st.sampled_from([*NAMES, header.REDRIVEN_COUNT, *header.ORIGINAL_NAMES.values()])
VALUES = st.sampled_from([b"7", b"12", b"", b"x" * 200, None])


def messages(names: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[tuple]]:
    """Messages whose records, where there are any, have headers of such names."""
    headers = names.flatmap(lambda some: st.tuples(*(st.tuples(st.just(name), VALUES) for name in some)))
    return st.lists(
        st.tuples(
            st.integers(0, 1 << 40),
            st.none() | st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=300), headers),
            st.integers(0, 2) | st.just(1),
            st.integers(0, 2) | st.just(0),
            st.none() | st.integers(0, 1 << 44),
        ),
        min_size=1,
        max_size=8,
    )


ANY_NAMES = st.lists(ALL_NAMES, max_size=4)
MESSAGES = messages(ANY_NAMES) | ANY_NAMES.flatmap(lambda names: messages(st.just(names)))
"""Of any headers, and of headers with the same names, as messages have that leave together."""


@pytest.mark.feature("D2", "D3", "C54")
@given(MESSAGES, st.sampled_from(["", "why", UNCONFIRMED]))
def test_letters_of_one_removal_are_what_each_would_be_alone(messages, detail) -> None:
    letters = PackedLetters(
        Death(
            entity="orders",
            bookmark=Bookmark("t:0", 3, 0),
            reasons=(Reason.TIME_LIMIT, Reason.PURGED),
            expired_at_ms=5,
            expires_at_ms=None,
            delivery_count=0,
            detail=detail,
            epoch=4,
        )
    )
    dead, alone = [], []
    for offset, stored, deliveries, cancels, until_ms in messages:
        key, value, headers = (None, None, ()) if stored is None else stored
        record = None if stored is None else SimpleNamespace(key=key, value=value, headers=headers)
        dead.append((offset, record, deliveries, cancels, NEVER if until_ms is None else until_ms))
        death = Death(
            entity="orders",
            bookmark=Bookmark("t:0", 3, offset),
            reasons=(Reason.TIME_LIMIT, Reason.PURGED),
            expired_at_ms=5,
            expires_at_ms=until_ms,
            delivery_count=deliveries,
            cancel_count=cancels,
            detail=detail,
            epoch=4,
            null_value=stored is not None and value is None,
        )
        own = dead_letter.headers(death, headers)
        alone.append(packed(key, value, len(own), packed_headers(own)))
    assert letters.pack(dead) == alone


@pytest.mark.feature("C60", "D2")
def test_letters_whose_own_headers_all_differ_are_put_together_once(monkeypatch) -> None:
    made = []
    slow = dead_letter.death_headers
    monkeypatch.setattr(dead_letter, "death_headers", lambda *asked: made.append(1) or slow(*asked))
    death = Death(entity="orders", bookmark=Bookmark("t", 3, 0), reasons=(Reason.TIME_LIMIT,), expired_at_ms=5)
    headers = [((EXPIRES_AT_MS, b"%d" % number), ("trace", b"%d" % -number)) for number in range(1_000)]
    records = [SimpleNamespace(key=None, value=b"{}", headers=one) for one in headers]
    letters = PackedLetters(death).pack((1_000 + at, one, 0, 0, at) for at, one in enumerate(records))
    assert len(letters) == 1_000
    assert len(made) < 10

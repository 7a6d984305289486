"""Bookmarks and ranges of them."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse.core.generation import FIRST_REWOUND, MOST_GENERATIONS, position_of
from lapse.protocol.bookmark import Bookmark, BookmarkRange, parse_ranges, ranges

TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True)
BOOKMARKS = st.builds(
    Bookmark, TOPICS, st.integers(0, 9999), st.integers(0, position_of(FIRST_REWOUND - 1, MOST_GENERATIONS))
)


@given(BOOKMARKS)
def test_a_bookmark_reads_back_as_it_was_written(bookmark):
    assert Bookmark.parse(str(bookmark)) == bookmark


@pytest.mark.feature("Q8")
@given(BOOKMARKS, st.integers(0, 1000), st.none() | st.integers(0, 10**9), st.none() | st.integers(0, 10**17))
def test_a_range_reads_back_as_it_was_written(first, length, count, epoch):
    last = min(first.offset + length, position_of(FIRST_REWOUND - 1, first.generation))
    written = BookmarkRange(*first, last, count, None if count is None else epoch)
    assert BookmarkRange.parse(str(written)) == written
    assert len(written) == last - first.offset + 1


@pytest.mark.feature("C61")
def test_a_generation_is_part_of_the_name_and_a_range_stays_in_its_own():
    assert Bookmark.parse("t:0:17~2") == Bookmark("t", 0, position_of(17, 2))
    assert (Bookmark.parse("t:0:17~2").log_offset, Bookmark.parse("t:0:17~2").generation) == (17, 2)
    assert str(BookmarkRange.parse("t:0:17-20~1#3@4")) == "t:0:17-20~1#3@4"
    assert BookmarkRange.parse(f"t:0:0-{(1 << 63) - 1}").last == FIRST_REWOUND - 1


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "text",
    ["", "t", "t:0", "t:0:", "t:0:1-", "t:0:-1", "t:0:1:2", "t:0:2-1", "t:0:1#", "t:0:1#x", "t:0:1#1@", "t:0:1@1",
     "t:0:1~", "t:0:1~0", "t:0:1~16384", "t:0:1~1-2", f"t:0:{FIRST_REWOUND}~1",
     " t:0:1", "t:0:1 ",
     "t:0:1\n", "t 1:0:1", ":0:1", "t:x:1", "t:٣:1", f"t:0:{1 << 63}", f"t:0:1-{1 << 63}", "t:0:" + "9" * 20,
     "t" * 250 + ":0:1"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_text_and_what_is_wrong(text):
    with pytest.raises(ValueError, match="bookmark"):
        BookmarkRange.parse(text)
    with pytest.raises(ValueError, match="bookmark"):
        parse_ranges(["t:0:1", text, "t:0:2"])


@pytest.mark.feature("Q8", "C13", "C61")
@given(st.lists(st.builds(
    lambda name, more, count, epoch: str(name) + more + count + epoch * bool(count),
    st.builds(Bookmark, TOPICS, st.integers(0, 99), st.integers(0, 50)),
    st.sampled_from(["", "", "-60", "-60", "~3", f"-{FIRST_REWOUND}", "-1"]),
    st.sampled_from(["", "#1", "#1", "#2"]),
    st.sampled_from(["", "@7"]),
), max_size=6))  # fmt: skip
def test_many_are_read_as_each_of_them(texts):
    def fields(text):
        one = BookmarkRange.parse(text)
        return one.topic, one.partition, one.first, one.last, one.delivery_count, one.epoch

    try:
        expected = [fields(text) for text in texts]
    except ValueError as fault:
        with pytest.raises(ValueError, match=re.escape(str(fault))):
            parse_ranges(texts)
    else:
        assert parse_ranges(texts) == expected


@pytest.mark.parametrize("text", ["t:0:1-2", "t:0:1#3"])
def test_one_bookmark_is_neither_a_range_nor_a_delivery(text):
    with pytest.raises(ValueError, match="expected one message"):
        Bookmark.parse(text)
    assert Bookmark.parse("t:0:1-1") == ("t", 0, 1)


def test_a_range_is_its_bookmarks():
    assert [str(one) for one in BookmarkRange.parse("t:1:5-7#2")] == ["t:1:5", "t:1:6", "t:1:7"]


@pytest.mark.feature("Q8", "D4")
@given(
    st.dictionaries(
        st.builds(Bookmark, st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 12)), st.sampled_from([None, 1, 2])
    )
)
def test_joined_ranges_name_the_same_messages_with_as_few_ranges_as_possible(messages):
    joined = ranges(messages.items())
    assert {one: span.delivery_count for span in joined for one in span} == messages
    assert sum(map(len, joined)) == len(messages)
    for left, right in pairwise(joined):
        neighbours = (left.topic, left.partition, left.last + 1) == (right.topic, right.partition, right.first)
        assert not neighbours or left.delivery_count != right.delivery_count


@pytest.mark.feature("X7")
def test_a_header_that_states_no_bookmark_states_none():
    assert Bookmark.parse_stated(b"orders:0:17") == Bookmark("orders", 0, 17)
    for value in (None, b"", b"\xff", b"orders", b"orders:0:1-2", b"orders:0:" + b"9" * 5_000):
        assert Bookmark.parse_stated(value) is None


@pytest.mark.feature("Q8", "X7")
@settings(deadline=None, max_examples=150)
@pytest.mark.slow
@given(
    st.sampled_from(["t:0", "orders.x:17"]),
    st.sampled_from(["", "#1", "#2@5", "~1#1", "#"]),
    st.lists(
        st.sampled_from(
            ["5", "005", "7-9", "9-7", "7-7", "-5", "5-", "1_0", "+5", " 5", "5-6-7", "", "x", "5#1", "²", "1" * 19]
        )
        | st.integers(0, 2**64).map(str)
        | st.integers(0, 200).map(str)
        | st.tuples(st.integers(0, 99), st.integers(0, 99)).map(lambda ends: f"{ends[0]}-{ends[0] + ends[1]}"),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["", "u:0:1", "t:1:1#1", "t:0:1#2"]),
)
def test_many_ranges_that_differ_in_offsets_only_are_read_like_each(
    source: str, tail: str, places: list[str], other: str
) -> None:
    texts = [f"{source}:{number}{tail}" for number in range(16)]
    texts += [f"{source}:{place}{tail}" for place in places] + ([other] if other else [])
    try:
        each = [BookmarkRange.parse(text) for text in texts]
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            parse_ranges(texts)
        return
    expected = [(one.topic, one.partition, one.first, one.last, one.delivery_count, one.epoch) for one in each]
    assert parse_ranges(texts) == expected

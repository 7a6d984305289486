"""Hand-overs: which record replaces which message, however many there are said to be (Q17, C59)."""

import pytest

from lapse.protocol.bookmark import Bookmark
from lapse.protocol.hand_over import HandOver

pytestmark = pytest.mark.feature("Q17", "C59", "X7")


def test_a_message_and_its_record_are_found_without_going_through_the_others() -> None:
    """Anybody may write a confirmation: `lapse explain` would go through all that a forged one names."""
    one = HandOver.parse(f"orders:0:5-{10**14}>there:1:7-{10**14 + 2}")
    message, record = Bookmark("orders", 0, 10**14 - 1), Bookmark("there", 1, 10**14 + 1)
    assert one.record_of(message) == record
    assert one.message_of(record) == message
    for other in (Bookmark("orders", 0, 4), Bookmark("orders", 1, 5), Bookmark("there", 0, 5)):
        assert one.record_of(other) is None
    assert one.message_of(Bookmark("there", 1, 6)) is None


def test_what_it_finds_is_what_both_ranges_name() -> None:
    one = HandOver.parse("orders:0:5-9~2>there:1:7-11")
    for message, record in zip(one.messages, one.records, strict=True):
        assert (one.record_of(message), one.message_of(record)) == (record, message)

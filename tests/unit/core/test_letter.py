"""A dead letter's headers are history, whoever wrote it; what lapse puts somewhere says what it means (C54)."""

from types import SimpleNamespace as Record

import pytest

from lapse.core import letter, lifetime
from lapse.core.queue.arrival.arrival import transfer_of
from lapse.core.repeats import id_of
from lapse.core.sow.arrival import is_redriven_elsewhere
from lapse.core.sow.header_cache import HeaderCache

LIFETIME = ("lapse-expires-at-ms", b"5")
pytestmark = pytest.mark.feature("C54")


@pytest.mark.parametrize("marker", sorted(letter.MARKERS))
def test_a_letter_states_no_lifetime_and_no_id(marker: str) -> None:
    """Not even one that cannot be read: it was the message's."""
    headers = [("lapse-message-id", b"1"), (marker, b"x"), LIFETIME, ("lapse-ttl-ms", b"soon")]
    assert lifetime.read(headers, 0) == lifetime.NO_LIFETIME
    assert id_of(headers) is None
    assert HeaderCache(lifetime.Expiration()).meaning_of([(marker, b"x"), LIFETIME]) is None


@pytest.mark.parametrize(
    "put",
    [
        ("lapse-redrive-queue", b"q"),
        ("lapse-transfer", b"q/1"),
        ("lapse-origin", b"east"),
        ("lapse-message-id", b"forward/q/t:0:1/2"),
    ],
)
def test_a_letter_that_lapse_passed_on_states_what_it_says(put: tuple[str, bytes]) -> None:
    assert lifetime.read([("lapse-id", b"x"), put, LIFETIME], 0).absolute_ms == 5


@pytest.mark.parametrize("marker", sorted(letter.MARKERS))
@pytest.mark.parametrize(
    "put", [("lapse-redrive-queue", b"q"), ("lapse-transfer", b"q/1"), ("lapse-message-id", b"forward/q/t:0:1/2")]
)
def test_the_letter_of_a_message_that_lapse_passed_on_is_a_letter(put: tuple[str, bytes], marker: str) -> None:
    """Other programs copy all headers. What they write comes behind them, and so do lapse's own headers of a death."""
    headers = [put, ("lapse-ttl-ms", b"1"), (marker, b"x"), LIFETIME]
    assert lifetime.read(headers, 0) == lifetime.NO_LIFETIME
    assert id_of(headers) is None
    assert transfer_of(headers, "another") == ""
    assert not is_redriven_elsewhere(Record(headers=headers), "another")


def test_an_ordinary_message_is_no_letter() -> None:
    assert not letter.is_letter([LIFETIME, ("lapse-message-id", b"1"), ("lapse-original-ttl-ms", b"1")])
    assert id_of([("lapse-message-id", b"1")]) == b"1"

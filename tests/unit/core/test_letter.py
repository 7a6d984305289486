"""A dead letter's headers are history, whoever wrote it; what lapse puts somewhere says what it means (C54)."""

from types import SimpleNamespace as Record

import pytest

from lapse.core import letter, lifetime
from lapse.core.queue.arrival.arrival import transfer_of
from lapse.core.repeats import id_of
from lapse.core.sow.arrival.arrival import is_redriven_elsewhere
from lapse.core.sow.arrival.header_cache import HeaderCache
from lapse.core.sow.arrival.origin import path_of
from lapse.core.sow.records.record import headers_of, payload_of
from lapse.core.sow.shard import SowShard
from lapse.core.sow.step import Step
from unit.core.sow.make import Arrived, T, shard_of

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


def letters_of(kind: str) -> list[tuple[str, bytes]]:
    """Headers of a letter that lapse, or another program, wrote of an update; others copy all headers."""
    if kind == "lapse":
        return [("lapse-command", b"delta"), ("lapse-id", b"x")]
    came = [("lapse-origin", b"east"), ("lapse-origin-timestamp-ms", b"%d" % (T + 9_000))]
    return [*came, ("lapse-command", b"delta"), ("__connect.errors.topic", b"prices")]


def stored(shard: SowShard, offset: int, key: bytes, value: bytes, headers: list[tuple[str, bytes]]) -> bytes:
    """Take a record in; return what is stored of its key then."""
    step = Step()
    shard.arrive("dlq.prices", 0, [Arrived(offset, T + offset, key, value, headers)], step)
    shard.advance(T + offset, step)
    assert not step.removals
    return shard.state.entries[b"r" + key]


@pytest.mark.feature("S2", "S10")
@pytest.mark.parametrize("kind", ["lapse", "connect"])
def test_a_letter_replaces_the_letter_before_it_and_counts_as_published_here(kind: str) -> None:
    """A record that is merged of two letters would be none of them. No other deployment has written it."""
    shard, headers = shard_of(None), letters_of(kind)
    stored(shard, 0, b"k", b'{"a":1,"b":2}', headers)
    entry = stored(shard, 1, b"k", b'{"b":3}', headers)
    assert payload_of(entry) == b'{"b":3}'
    assert path_of(headers_of(entry)) == b"", "a replicator takes it everywhere"
    unreadable = ("lapse-command", b"upsert")
    assert payload_of(stored(shard, 2, b"k", b"{}", [unreadable, *headers])) == b"{}", "it may have died of that"


@pytest.mark.feature("S2", "S10")
def test_a_letter_that_was_sent_back_is_merged_and_one_that_was_replicated_keeps_its_origin() -> None:
    shard = shard_of(None)
    stored(shard, 0, b"k", b'{"a":1}', [])
    back = [*letters_of("lapse"), ("lapse-redrive-queue", b"orders")]
    assert payload_of(stored(shard, 1, b"k", b'{"b":3}', back)) == b'{"a":1,"b":3}'
    came = [("lapse-id", b"x"), ("lapse-origin", b"east"), ("lapse-origin-timestamp-ms", b"%d" % T)]
    assert path_of(headers_of(stored(shard, 2, b"other", b"{}", came))) == b"east"

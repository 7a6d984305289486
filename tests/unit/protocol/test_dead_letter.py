"""The headers of a dead letter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core import letter, lifetime
from lapse.core.reason import Reason, in_order
from lapse.protocol import hand_over, header, redrive
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.dead_letter import Death, headers, lapse_id, redriven_count


def death(**fields):
    given_fields = {"reasons": (Reason.TIME_LIMIT,), "expired_at_ms": 90, **fields}
    return Death(entity="orders", bookmark=Bookmark("t", 1, 2), **given_fields)


@pytest.mark.feature("D2", "C26", "D3")
def test_a_letter_tells_everything_of_the_death():
    written = dict(headers(death(expires_at_ms=80, delivery_count=3, cancel_count=2, epoch=6), []))
    assert written == {
        "__dlq.errors.topic": b"t",
        "__dlq.errors.partition": b"1",
        "__dlq.errors.offset": b"2",
        "__dlq.errors.group": b"orders",
        "__dlq.errors.delivery.count": b"3",
        "__dlq.errors.message": b"its lifetime ended",
        "lapse-reasons": b"time_limit",
        "lapse-cancel-count": b"2",
        "lapse-expires-at-ms": b"80",
        "lapse-expired-at-ms": b"90",
        "lapse-redriven-count": b"0",
        "lapse-id": b"orders/t:1:2/0",
        "lapse-epoch": b"6",
    }


@pytest.mark.feature("C26")
def test_without_a_deadline_there_is_no_deadline_header():
    assert header.EXPIRES_AT_MS not in dict(headers(death(), []))


@pytest.mark.feature("D2")
def test_lifetimes_are_renamed_so_that_nothing_expires_again():
    original = [(name, b"5") for name in sorted(lifetime.NAMES)] + [("trace", b"x"), ("trace", b"y")]
    written = headers(death(), original)
    assert {name for name, _ in written} & lifetime.NAMES == set()
    assert {name for name, _ in written if name.startswith("lapse-original-")} == set(header.ORIGINAL_NAMES.values())
    assert [value for name, value in written if name == "trace"] == [b"x", b"y"]
    assert not lifetime.read([item for item in written if item[0] != header.EXPIRES_AT_MS], 0).stated


@pytest.mark.feature("D2", "C30")
def test_on_a_second_death_headers_are_overwritten_and_the_first_original_kept():
    first = headers(death(expires_at_ms=80, detail="one"), [("lapse-ttl-ms", b"5"), ("own", b"x")])
    redriven = [(name, b"1" if name == header.REDRIVEN_COUNT else value) for name, value in first]
    redriven += [("lapse-ttl-ms", b"7"), (header.REDRIVE_QUEUE, b"orders")]
    second = headers(death(detail="two"), redriven)
    names = [name for name, _ in second]
    assert len(names) == len(set(names))
    facts = dict(second)
    assert facts["lapse-original-ttl-ms"] == b"5"
    assert facts["__dlq.errors.message"] == b"two"
    assert facts["lapse-id"] == b"orders/t:1:2/1"
    assert header.REDRIVE_QUEUE not in facts
    assert header.EXPIRES_AT_MS not in facts


def of_letter(first, entity, **fields):
    return headers(Death(entity=entity, bookmark=Bookmark(f"dlq.{entity}", 0, 7), **fields), first)


DIED_AGAIN = {"reasons": (Reason.PURGED,), "expired_at_ms": 99, "expires_at_ms": 98, "delivery_count": 8, "epoch": 2}


@pytest.mark.feature("C54", "C59")
@pytest.mark.parametrize(
    "first",
    [
        [(name, value) for name, value in headers(death(cancel_count=2, null_value=True, epoch=5), [("own", b"x")])],
        [("__dlq.errors.topic", b"t"), ("__dlq.errors.partition", b"1"), ("__dlq.errors.offset", b"2"), ("own", b"x")],
        [(f"kafka_dlt-original-{fact}", b"12345678") for fact in ("topic", "partition", "offset")],
        [(f"__streams.errors.{fact}", b"1") for fact in ("topic", "partition", "offset")],
    ],
)
def test_a_letter_that_dies_and_is_redriven_is_the_first_letter_again(first):
    second = of_letter(first, "again", **DIED_AGAIN)
    assert dict(second)["__dlq.errors.topic"] == b"dlq.again"
    assert len(dict(second)) == len(second)
    back = redrive.headers(second, lapse_id="again/dlq.again:0:7/0", redriven_count=0, queue="again")
    own = {
        header.REDRIVEN_COUNT: b"1",
        header.MESSAGE_ID: b"redrive/again/dlq.again:0:7/0",
        header.REDRIVE_QUEUE: b"again",
    }
    assert dict(back) == dict(first) | own
    assert not letter.is_letter(back)  # its lifetimes are meant, as those of all that is redriven
    elsewhere = redrive.headers(second, lapse_id="again/dlq.again:0:7/0", redriven_count=0)
    assert not {name for name, _ in elsewhere} & (letter.MARKERS | set(header.FIRST_NAMES.values()))
    third = of_letter(second, "more", **DIED_AGAIN)
    kept = {name: value for name, value in second if name in header.FIRST_NAMES.values()}
    assert {name: value for name, value in third if name in header.FIRST_NAMES.values()} == kept or not kept


@pytest.mark.feature("C54", "C30")
def test_the_first_deadline_outlasts_a_second_death_and_a_redrive_and_is_no_lifetime_there():
    first = headers(death(expires_at_ms=80), [])
    second = of_letter(first, "again", **DIED_AGAIN)
    assert (dict(second)[header.FIRST_EXPIRES_AT_MS], dict(second)[header.EXPIRES_AT_MS]) == (b"80", b"98")
    assert dict(of_letter(second, "more", **DIED_AGAIN))[header.FIRST_EXPIRES_AT_MS] == b"80"
    sent_back = {"lapse_id": "again/dlq.again:0:7/0", "redriven_count": 0, "queue": "again"}
    for limit in (None, (header.EXPIRES_AT_MS, 98)):
        back = redrive.headers(second, lifetime=limit, **sent_back)
        stated = () if limit is None else lifetime.NAMES & dict(back).keys()
        assert dict(back)[header.FIRST_EXPIRES_AT_MS] == b"80"
        assert set(stated) == (set() if limit is None else {header.EXPIRES_AT_MS})
        died_again = of_letter([(name, value) for name, value in back if value is not None], "again", **DIED_AGAIN)
        assert dict(died_again)[header.FIRST_EXPIRES_AT_MS] == b"80"
        assert len(dict(died_again)) == len(died_again)
        once_more = redrive.headers(back, lapse_id="orders/t:1:2/0", redriven_count=1, queue="orders")
        assert not {name for name, _ in once_more} & {header.FIRST_EXPIRES_AT_MS, header.EXPIRES_AT_MS}
    elsewhere = redrive.headers(second, lapse_id="again/dlq.again:0:7/0", redriven_count=0)
    assert header.FIRST_EXPIRES_AT_MS not in dict(elsewhere)


@pytest.mark.feature("C54", "C38")
def test_the_deadline_of_a_letter_that_was_forwarded_is_its_own_and_not_the_first_one():
    first = headers(death(), [(header.MESSAGE_ID, b"mine")])
    forwarded = [*first, (header.EXPIRES_AT_MS, b"97"), (header.MESSAGE_ID, b"forward/q/t:0:1/5")]
    assert header.FIRST_EXPIRES_AT_MS not in dict(of_letter(forwarded, "again", **DIED_AGAIN))


@pytest.mark.feature("C54", "C38", "Q17")
def test_a_first_letter_that_is_handed_over_keeps_its_deadline_beside_its_own():
    first = headers(death(expires_at_ms=80), [])
    put = hand_over.headers(first, "orders", "t1", 97, None)
    assert (dict(put)[header.FIRST_EXPIRES_AT_MS], dict(put)[header.EXPIRES_AT_MS]) == (b"80", b"97")
    assert hand_over.headers(put, "orders", "t1", 97, None) == put, "it may be handed over again"
    second = of_letter(put, "again", **DIED_AGAIN)
    assert dict(second)[header.FIRST_EXPIRES_AT_MS] == b"80"
    assert dict(hand_over.headers(second, "orders", "t2", None, None))[header.FIRST_EXPIRES_AT_MS] == b"80"


@pytest.mark.feature("C54", "S10")
def test_the_letter_of_a_replicated_record_was_not_replicated_itself():
    facts = dict(of_letter([(name, b"x") for name in header.ORIGIN_NAMES], "copies", **DIED_AGAIN))
    assert not facts.keys() & header.ORIGIN_NAMES


@pytest.mark.feature("C22", "L14")
def test_reasons_stand_in_the_order_of_the_contract():
    assert in_order([Reason.MAX_CANCELS, Reason.TIME_LIMIT, Reason.MAX_DELIVERIES, Reason.TIME_LIMIT]) == (
        Reason.TIME_LIMIT,
        Reason.MAX_DELIVERIES,
        Reason.MAX_CANCELS,
    )


@pytest.mark.feature("D2", "L14")
@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_sentence(reason):
    assert dict(headers(death(reasons=(reason,)), []))["__dlq.errors.message"]


@pytest.mark.feature("D2")
@given(st.text(max_size=600))
def test_a_long_text_is_cut_between_characters(text):
    written = dict(headers(death(detail=text), []))["__dlq.errors.message"]
    assert len(written) <= 1000
    assert not text or text.encode("utf-8", "ignore").startswith(written)


@pytest.mark.feature("D3")
@pytest.mark.parametrize(
    ("value", "count"), [(b"3", 3), (b"", 0), (b"-1", 0), (b"x", 0), (b"9" * 30, 0), (None, 0), ("３".encode(), 0)]
)
def test_the_redrive_count_is_read_or_0(value, count):
    assert redriven_count([(header.REDRIVEN_COUNT, value)]) == count


@pytest.mark.feature("D3")
def test_the_id_tells_deaths_apart_and_nothing_else():
    assert lapse_id("q", Bookmark("t", 0, 1), 0) != lapse_id("q", Bookmark("t", 0, 1), 1)
    assert lapse_id("q", Bookmark("t", 0, 1), 0) == lapse_id("q", Bookmark("t", 0, 1), 0)

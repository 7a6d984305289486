"""Lifetimes by the sources' own examples, and every rule of C6 to C10."""

import pytest

from lapse.core.lifetime import (
    NEVER,
    NO_TIMESTAMP,
    Expiration,
    ExpirationModel,
    InvalidLifetime,
    Lifetime,
    deadline_ms,
    read,
    rfc3339_ms,
)

T = 1_700_000_000_000
INT64_MAX = (1 << 63) - 1
MINUTE = 60_000


def deadline(headers, timestamp=T, default=None, model="override", enabled=True):
    setting = Expiration(enabled, default, ExpirationModel(model))
    return deadline_ms(read(headers, timestamp), timestamp, setting)


def ttl(value):
    return ("lapse-ttl-ms", value)


def expires(value):
    return ("lapse-expires-at-ms", value)


def typed(value):
    return ("lapse-expire-time", value)


def enqueue(value):
    return ("lapse-enqueue-at-ms", value)


def ce(value):
    return ("ce_expirytime", value)


def dec(number):
    return str(number).encode()


# --- the sources' examples ---------------------------------------------------------------------------------------


@pytest.mark.feature("L1", "L9", "S2")
def test_a_record_of_45_seconds_updated_at_15_seconds_gets_a_new_45_seconds():
    first = deadline([ttl(b"45000")], T)
    update = deadline([ttl(b"45000")], T + 15_000)
    assert first == T + 45_000
    assert update == T + 60_000


@pytest.mark.feature("L2", "L6", "L7")
def test_a_large_order_published_with_0_never_expires_on_a_topic_of_five_minutes():
    assert deadline([], default=5 * MINUTE) == T + 5 * MINUTE
    assert deadline([ttl(b"0")], default=5 * MINUTE) == NEVER


@pytest.mark.feature("L6")
def test_a_message_without_a_lifetime_inherits_the_topics_30_seconds_and_its_own_overrides_them():
    assert deadline([], default=30_000) == T + 30_000
    assert deadline([ttl(b"10000")], default=30_000) == T + 10_000
    assert deadline([ttl(b"90000")], default=30_000) == T + 90_000


@pytest.mark.feature("L6")
def test_without_message_and_topic_expiration_there_is_none():
    assert deadline([]) == NEVER
    assert deadline([], enabled=False) == NEVER


@pytest.mark.feature("L6", "L9")
def test_while_expiration_is_disabled_the_deadline_is_kept_all_the_same():
    assert deadline([ttl(b"45000")], enabled=False) == T + 45_000
    assert deadline([], default=1000, enabled=False) == T + 1000


@pytest.mark.feature("L5")
def test_scheduled_in_5_minutes_with_10_minutes_to_live_expires_after_5_plus_10():
    assert deadline([enqueue(dec(T + 5 * MINUTE)), ttl(dec(10 * MINUTE))]) == T + 15 * MINUTE


@pytest.mark.feature("L5", "L6")
def test_the_default_counts_from_the_scheduled_instant_too():
    assert deadline([enqueue(dec(T + 5 * MINUTE))], default=10 * MINUTE) == T + 15 * MINUTE


@pytest.mark.feature("L5")
def test_a_past_schedule_means_now():
    assert deadline([enqueue(dec(T - 1)), ttl(b"1000")]) == T + 1000
    assert deadline([enqueue(b"0"), ttl(b"1000")]) == T + 1000


@pytest.mark.feature("L5")
def test_an_absolute_deadline_does_not_move_with_the_schedule():
    assert deadline([enqueue(dec(T + 9000)), expires(dec(T + 5))]) == T + 5


@pytest.mark.feature("L8", "C10")
@pytest.mark.parametrize(
    ("queue", "topic", "used"),
    [(10_000, 4_000, 4_000), (4_000, 10_000, 4_000), (None, 7_000, 7_000), (7_000, None, 7_000)],
)
def test_of_the_topics_and_the_subscriptions_lifetime_the_shorter_applies(queue, topic, used):
    setting = Expiration(True, queue).shortened_by(topic)
    assert deadline_ms(Lifetime(), T, setting) == T + used


@pytest.mark.feature("C10")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("model", list(ExpirationModel))
def test_a_topic_contributes_a_duration_only(enabled, model):
    setting = Expiration(enabled, 5, model).shortened_by(3)
    assert setting == Expiration(enabled, 3, model)


@pytest.mark.feature("L4")
def test_mqes_int_field_of_60000_expires_60_seconds_after_creation():
    assert deadline([typed((60_000).to_bytes(4, "big"))]) == T + 60_000


@pytest.mark.feature("L4", "L3")
def test_mqes_long_field_expires_on_15th_may_2001_at_15_25():
    instant = rfc3339_ms(b"2001-05-15T15:25:00Z")
    assert instant == 989_940_300_000
    assert deadline([typed(instant.to_bytes(8, "big"))], timestamp=instant - 1) == instant


@pytest.mark.feature("L7")
def test_under_a_ceiling_a_longer_lifetime_is_silently_lowered():
    assert deadline([ttl(b"90000")], default=30_000, model="ceiling") == T + 30_000
    assert deadline([ttl(b"0")], default=30_000, model="ceiling") == T + 30_000
    assert deadline([ttl(b"10000")], default=30_000, model="ceiling") == T + 10_000
    assert deadline([expires(dec(T + 90_000))], default=30_000, model="ceiling") == T + 30_000
    assert deadline([expires(dec(T + 10_000))], default=30_000, model="ceiling") == T + 10_000


@pytest.mark.feature("L7", "L6")
def test_a_ceiling_without_a_duration_lowers_nothing():
    assert deadline([ttl(b"0")], model="ceiling") == NEVER
    assert deadline([expires(dec(INT64_MAX))], model="ceiling") == INT64_MAX


@pytest.mark.feature("L7", "L5")
def test_a_ceiling_counts_from_the_scheduled_instant():
    headers = [enqueue(dec(T + 5000)), expires(dec(T + 90_000))]
    assert deadline(headers, default=1000, model="ceiling") == T + 6000


@pytest.mark.feature("L3")
def test_a_past_instant_is_kept_as_it_is_so_that_it_expires_on_arrival():
    assert deadline([expires(dec(T - 1))]) == T - 1
    assert deadline([expires(b"0")]) == 0


# --- C6: timestamps ----------------------------------------------------------------------------------------------


@pytest.mark.feature("C6")
def test_a_stamp_ahead_of_every_clock_is_used_as_it_is():
    assert deadline([ttl(b"5")], timestamp=T * 100) == T * 100 + 5


@pytest.mark.feature("C6")
@pytest.mark.parametrize(
    "headers", [[], [ttl(b"0")], [expires(dec(T))], [typed(dec(12345678))], [ce(b"2030-01-01T00:00:00Z")]]
)
def test_without_a_timestamp_what_does_not_count_from_it_is_accepted(headers):
    read(headers, NO_TIMESTAMP)
    deadline(headers, timestamp=NO_TIMESTAMP)


@pytest.mark.feature("C6", "L12")
@pytest.mark.parametrize("headers", [[ttl(b"5")], [typed(b"\0\0\0\5")]])
def test_without_a_timestamp_a_relative_lifetime_is_invalid(headers):
    with pytest.raises(InvalidLifetime, match="has none"):
        read(headers, NO_TIMESTAMP)


@pytest.mark.feature("C6", "L12")
@pytest.mark.parametrize(("headers", "model"), [([], "override"), ([], "ceiling"), ([ttl(b"0")], "ceiling")])
def test_without_a_timestamp_the_default_is_invalid(headers, model):
    with pytest.raises(InvalidLifetime, match="has none"):
        deadline(headers, timestamp=NO_TIMESTAMP, default=5, model=model)


@pytest.mark.feature("C6", "L5")
def test_without_a_timestamp_a_scheduled_message_counts_from_its_schedule():
    assert deadline([enqueue(dec(T)), ttl(b"5")], timestamp=NO_TIMESTAMP) == T + 5
    assert deadline([enqueue(dec(T))], timestamp=NO_TIMESTAMP, default=7) == T + 7


# --- C7: grammar -------------------------------------------------------------------------------------------------

DECIMAL_NAMES = ["lapse-ttl-ms", "lapse-expires-at-ms", "lapse-enqueue-at-ms"]


@pytest.mark.feature("C7", "L12", "C8")
@pytest.mark.parametrize("name", DECIMAL_NAMES)
@pytest.mark.parametrize(
    "value",
    [b"", b" 5", b"5 ", b"5\n", b"+5", b"-5", b"-0", b"5.0", b"5e3", b"0x5", b"1_000", b"five", b"\xd9\xa5", b"\xff",
     b"0" * 20, dec(1 << 63), b"9" * 19, b"99999999999999999999", "５".encode(), None],
)  # fmt: skip
def test_a_number_is_at_most_19_ascii_digits_within_64_bits(name, value):
    with pytest.raises(InvalidLifetime, match=name):
        read([(name, value)], T)


@pytest.mark.feature("C7")
@pytest.mark.parametrize("value", [b"5", b"05", b"0000000000000000005"])
def test_leading_zeros_are_allowed(value):
    assert read([ttl(value)], T) == Lifetime(relative_ms=5)


@pytest.mark.feature("C7", "L4", "L12")
@pytest.mark.parametrize("value", [b"", b"\0", b"\0" * 3, b"\0" * 5, b"\0" * 7, b"\0" * 9, b"60000", None])
def test_a_typed_field_has_4_or_8_bytes(value):
    with pytest.raises(InvalidLifetime, match="4 .relative ms, int32. or 8"):
        read([typed(value)], T)


@pytest.mark.feature("C7", "L4")
def test_a_typed_field_of_0_is_never_as_int_and_1970_as_long():
    assert deadline([typed(bytes(4))], default=5) == NEVER
    assert deadline([typed(bytes(8))]) == 0


@pytest.mark.feature("C7", "L4", "L12")
@pytest.mark.parametrize("value", [b"\xff" * 4, b"\xff" * 8, b"\x80" + bytes(3), b"\x80" + bytes(7)])
def test_a_negative_typed_field_is_invalid(value):
    with pytest.raises(InvalidLifetime, match="negative"):
        read([typed(value)], T)


@pytest.mark.feature("C7", "L4")
def test_the_largest_typed_fields():
    assert read([typed(b"\x7f" + b"\xff" * 3)], T) == Lifetime(relative_ms=(1 << 31) - 1)
    assert read([typed(b"\x7f" + b"\xff" * 7)], T) == Lifetime(absolute_ms=INT64_MAX)


@pytest.mark.feature("C7", "L3")
@pytest.mark.parametrize(
    ("value", "instant"),
    [
        (b"1970-01-01T00:00:00Z", 0),
        (b"1969-12-31T23:59:59.999Z", 0),
        (b"1970-01-01T00:00:00+00:01", 0),
        (b"0001-01-01T00:00:00Z", 0),
        (b"2026-01-31T12:00:00.001Z", 1_769_860_800_001),
        (b"2026-01-31T12:00:00.9999999Z", 1_769_860_800_999),
        (b"2026-01-31T12:00:00.5Z", 1_769_860_800_500),
        (b"2026-01-31t12:00:00z", 1_769_860_800_000),
        (b"2026-01-31 12:00:00Z", 1_769_860_800_000),
        (b"2026-01-31T14:30:00+02:30", 1_769_860_800_000),
        (b"2026-01-31T09:30:00-02:30", 1_769_860_800_000),
        (b"2024-02-29T00:00:00Z", 1_709_164_800_000),
        (b"2000-02-29T00:00:00Z", 951_782_400_000),
        (b"2016-12-31T23:59:60Z", 1_483_228_800_000),
        (b"9999-12-31T23:59:59.999Z", 253_402_300_799_999),
    ],
)
def test_an_rfc_3339_instant_is_cut_to_the_millisecond(value, instant):
    assert read([ce(value)], T) == Lifetime(absolute_ms=instant)


@pytest.mark.feature("C7", "L3", "L12")
@pytest.mark.parametrize(
    "value",
    [b"", b"2026-01-31", b"2026-01-31T12:00:00", b"2026-01-31T12:00Z", b"2026-13-01T00:00:00Z", b"2026-00-01T00:00:00Z",
     b"2026-02-29T00:00:00Z", b"1900-02-29T00:00:00Z", b"2026-04-31T00:00:00Z", b"2026-01-00T00:00:00Z",
     b"2026-01-01T24:00:00Z", b"2026-01-01T00:60:00Z", b"2026-01-01T00:00:61Z", b"2026-01-01T00:00:00+24:00",
     b"2026-01-01T00:00:00+00:60", b"2026-01-01T00:00:00.Z", b"2026-01-01T00:00:00Z ", b"1969-02-29T00:00:00Z",
     b"-2026-01-01T00:00:00Z", b"1769860800000", "２０２６-01-01T00:00:00Z".encode(),
     None],
)  # fmt: skip
def test_what_is_no_instant_is_invalid(value):
    with pytest.raises(InvalidLifetime, match="ce_expirytime"):
        read([ce(value)], T)


# --- C8: more than one -------------------------------------------------------------------------------------------

SAME = [
    [ttl(b"5"), ttl(b"05")],
    [ttl(b"5"), typed(b"\0\0\0\5")],
    [ttl(b"5"), expires(dec(T + 5))],
    [expires(dec(T)), typed(T.to_bytes(8, "big"))],
    [ce(b"2026-01-31T12:00:00Z"), expires(b"1769860800000")],
    [ce(b"2026-01-31T12:00:00.0009Z"), ce(b"2026-01-31T13:00:00+01:00")],
    [ttl(b"0"), typed(bytes(4))],
]


@pytest.mark.feature("C8")
@pytest.mark.parametrize("headers", SAME)
def test_two_headers_that_state_the_same_instant_are_one(headers):
    assert deadline(headers) == deadline(headers[:1]) == deadline(headers[::-1])


@pytest.mark.feature("C8", "L12")
@pytest.mark.parametrize(
    "headers",
    [
        [ttl(b"5"), ttl(b"6")],
        [ttl(b"5"), expires(dec(T + 6))],
        [ttl(b"0"), expires(dec(T))],
        [ttl(b"0"), expires(dec(INT64_MAX))],
        [typed(b"\0\0\0\5"), typed((5).to_bytes(8, "big"))],
        [ce(b"2026-01-31T12:00:00Z"), expires(b"1769860800001")],
        [ttl(b"5"), ttl(b"5"), ttl(b"6")],
    ],
)
def test_two_headers_that_state_different_instants_are_invalid(headers):
    with pytest.raises(InvalidLifetime, match="different lifetimes"):
        read(headers, T)


@pytest.mark.feature("C8", "L5")
def test_whether_two_are_the_same_instant_is_seen_from_the_schedule():
    headers = [enqueue(dec(T + 100)), ttl(b"5"), expires(dec(T + 105))]
    assert deadline(headers) == T + 105
    with pytest.raises(InvalidLifetime, match="different lifetimes"):
        read([enqueue(dec(T + 100)), ttl(b"5"), expires(dec(T + 5))], T)


@pytest.mark.feature("C8", "C6")
def test_without_a_timestamp_two_statements_cannot_be_the_same_instant():
    for headers in ([ttl(b"5"), expires(b"4")], [expires(b"4"), ttl(b"5")]):
        with pytest.raises(InvalidLifetime, match="has none"):
            read(headers, NO_TIMESTAMP)


@pytest.mark.feature("C8", "L5", "L12")
def test_a_schedule_is_no_lifetime_and_may_not_stand_twice_with_different_instants():
    assert not read([enqueue(b"5")], T).stated
    assert read([enqueue(b"5"), enqueue(b"05")], T).enqueue_at_ms == 5
    with pytest.raises(InvalidLifetime, match="different instants"):
        read([enqueue(b"5"), enqueue(b"6")], T)


@pytest.mark.feature("C8", "L12")
def test_one_bad_header_beside_a_good_one_is_invalid():
    with pytest.raises(InvalidLifetime):
        read([ttl(b"5"), typed(b"\0\5")], T)


@pytest.mark.feature("L2")
def test_other_headers_mean_nothing():
    assert read([("lapse-ttl", b"x"), ("LAPSE-TTL-MS", b"x"), ("trace", b"5")], T) == Lifetime()


# --- C9: overflow ------------------------------------------------------------------------------------------------


@pytest.mark.feature("C9", "L7")
@pytest.mark.parametrize("header", [ttl(dec(INT64_MAX)), expires(dec(INT64_MAX)), typed(INT64_MAX.to_bytes(8, "big"))])
def test_under_a_ceiling_int64_max_means_the_ceiling(header):
    assert deadline([header], default=30_000, model="ceiling") == T + 30_000


@pytest.mark.feature("C9", "L12")
def test_under_override_an_overflow_is_invalid():
    with pytest.raises(InvalidLifetime, match="beyond 64 bits"):
        deadline([ttl(dec(INT64_MAX))])
    with pytest.raises(InvalidLifetime, match="beyond 64 bits"):
        deadline([ttl(dec(INT64_MAX - T))])
    assert deadline([ttl(dec(INT64_MAX - T - 1))]) == INT64_MAX - 1


@pytest.mark.feature("C9", "L12")
def test_a_schedule_plus_a_lifetime_can_overflow_too():
    with pytest.raises(InvalidLifetime, match="beyond 64 bits"):
        deadline([enqueue(dec(INT64_MAX)), ttl(b"1")])
    with pytest.raises(InvalidLifetime, match="beyond 64 bits"):
        deadline([enqueue(dec(INT64_MAX))], default=1, model="ceiling")


@pytest.mark.feature("C9")
def test_without_a_duration_a_ceiling_does_not_save_an_overflow():
    with pytest.raises(InvalidLifetime, match="beyond 64 bits"):
        deadline([ttl(dec(INT64_MAX))], model="ceiling")


@pytest.mark.feature("L12", "X7")
def test_the_fault_shows_at_most_40_bytes_of_the_value_in_printable_form():
    with pytest.raises(InvalidLifetime) as caught:
        read([ttl(b"\x1b[2J" + b"9" * 1000)], T)
    assert len(str(caught.value)) < 160
    assert str(caught.value).isprintable()

"""Any headers at all: `lifetime` says what a naive reading of the rules says."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lapse.core.lifetime import NEVER, Expiration, ExpirationModel, InvalidLifetime, deadline_ms, read, rfc3339_ms
from support.suite.at_length import examples

MAX = (1 << 63) - 1
SPANS = st.integers(0, 10**7) | st.sampled_from([0, 1, MAX - 1, MAX, MAX + 1])
DECIMALS = SPANS.map(lambda number: str(number).encode()) | st.sampled_from([b"", b"-1", b"1.5", b"007", b"9" * 20])
HEADERS = st.one_of(
    st.tuples(st.sampled_from(["lapse-ttl-ms", "lapse-expires-at-ms", "lapse-enqueue-at-ms"]), DECIMALS),
    st.tuples(st.just("lapse-expire-time"), st.binary(min_size=3, max_size=9)),
    st.tuples(st.just("lapse-expire-time"), st.integers(0, 10**7).map(lambda number: number.to_bytes(4, "big"))),
    st.tuples(st.just("lapse-expire-time"), st.integers(0, MAX).map(lambda number: number.to_bytes(8, "big"))),
    st.tuples(st.just("other"), st.binary()),
)


def stated(headers):
    """Relative lifetimes, absolute ones and schedules; None where one is malformed."""
    relative, absolute, schedules = set(), set(), set()
    for name, value in headers:
        if name == "lapse-expire-time":
            if len(value) not in (4, 8) or value[0] > 127:
                return None
            (relative if len(value) == 4 else absolute).add(int.from_bytes(value, "big"))
        elif name != "other":
            if not value or len(value) > 19 or any(byte not in b"0123456789" for byte in value) or int(value) > MAX:
                return None
            kind = {"lapse-ttl-ms": relative, "lapse-expires-at-ms": absolute, "lapse-enqueue-at-ms": schedules}[name]
            kind.add(int(value))
    return relative, absolute, schedules


def naive(headers, timestamp, default, ceiling):
    """The deadline, or None where the rules say `invalid_lifetime`."""
    found = stated(headers)
    if found is None or len(found[2]) > 1:
        return None
    relative, absolute, schedules = found
    start = max([timestamp, *schedules])
    anchored = timestamp != -1 or bool(schedules)
    if any(relative) and not anchored:
        return None
    # Never is no instant, not even that of int64 max.
    if len({start + span if span else "never" for span in relative} | absolute) > 1:
        return None
    spans = {span for span in relative if span}
    if default is not None and (ceiling or not (relative or absolute)):
        spans.add(default)
    if spans and not anchored:
        return None
    if absolute:
        if default is None or not ceiling:
            return min(absolute)
        return min({start + default} | absolute) if start + default < MAX else None
    if not spans:
        return NEVER
    return start + min(spans) if start + min(spans) < MAX else None


@pytest.mark.feature("L2", "L3", "L4", "L5", "L6", "L7", "L12", "C6", "C7", "C8", "C9")
@given(
    st.lists(HEADERS, max_size=3),
    st.sampled_from([-1, 0, 5, 1_700_000_000_000]),
    st.none() | st.integers(1, 10**6),
    st.booleans(),
    st.booleans(),
)
@example([("lapse-ttl-ms", b"0"), ("lapse-expires-at-ms", str(MAX).encode())], 5, None, False, True)
@example([("lapse-enqueue-at-ms", str(MAX).encode()), ("lapse-expires-at-ms", b"7")], 5, 3, True, True)
@settings(max_examples=examples(2000), deadline=None)
def test_lifetimes_agree_with_a_naive_reading(headers, timestamp, default, ceiling, enabled):
    setting = Expiration(enabled, default, ExpirationModel("ceiling" if ceiling else "override"))
    try:
        found = deadline_ms(read(headers, timestamp), timestamp, setting)
    except InvalidLifetime:
        found = None
    assert found == naive(headers, timestamp, default, ceiling)


@pytest.mark.feature("L3", "C7")
@given(
    st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(9999, 12, 30)),  # noqa: DTZ001
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
    st.integers(0, 9),
)
def test_any_instant_is_what_the_calendar_says_cut_to_the_millisecond(moment, offset, digits):
    fraction = "." + f"{moment.microsecond:06d}000"[:digits] if digits else ""
    sign = "-" if offset < 0 else "+"
    text = (
        f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f"{fraction}{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    )
    kept = int(f"{moment.microsecond:06d}"[:digits].ljust(6, "0")) // 1000
    seconds = moment.replace(microsecond=0, tzinfo=UTC) - timedelta(minutes=offset) - datetime(1970, 1, 1, tzinfo=UTC)
    expected = seconds // timedelta(milliseconds=1) + kept
    assert rfc3339_ms(text.encode()) == max(0, expected)


@given(st.binary(max_size=40) | st.text(alphabet="0123456789-:TZ.+", max_size=40).map(str.encode))
def test_no_bytes_do_more_than_raise_invalid_lifetime(value):
    for name in ("lapse-ttl-ms", "lapse-expires-at-ms", "lapse-expire-time", "ce_expirytime", "lapse-enqueue-at-ms"):
        try:
            lifetime = read([(name, value)], 5)
        except InvalidLifetime:
            continue
        for instant in (lifetime.relative_ms, lifetime.absolute_ms, lifetime.enqueue_at_ms):
            assert instant is None or 0 <= instant <= MAX

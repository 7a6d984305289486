"""Dates there and back."""

from datetime import date, timedelta
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lapse.core.days import LATEST_MS, date_of, days_since_1970
from lapse.core.expression.civil import parse_instant
from lapse.core.lifetime import InvalidLifetime, rfc3339_ms


@pytest.mark.feature("Q24", "L3")
def test_a_date_is_that_of_its_days() -> None:
    random, begin = Random(7), date(1970, 1, 1)
    near = [*range(-800, 800), *range(10_900, 11_100), *range(47_400, 47_600)]
    for days in [*near, *(random.randrange(-700_000, 2_932_896) for _ in range(5_000)), 2_932_896]:
        there = begin + timedelta(days)
        assert date_of(days) == (there.year, there.month, there.day)
        assert days_since_1970(*date_of(days)) == days


TWO = st.integers(0, 61).map("{:02}".format)
TEXTS = st.builds(
    "{:04}-{}-{}{}{}:{}:{}{}{}".format,
    st.integers(1970, 9999),
    TWO,
    TWO,
    st.sampled_from("Tt "),
    TWO,
    TWO,
    TWO,
    st.sampled_from(["", ".5", ".1239", ".000999999"]),
    st.one_of(st.sampled_from("Zz"), st.builds("{}{}:{}".format, st.sampled_from("+-"), TWO, TWO)),
)


@pytest.mark.feature("L3", "X1")
@given(TEXTS)
@example("2026-12-31T23:59:60Z")
@example("2024-02-29T00:00:00.999+23:59")
def test_a_header_and_an_expression_read_a_whole_text_alike(text: str) -> None:
    """`lapse.core.lifetime.rfc3339_ms` and `lapse.core.expression.civil.parse_instant`, which allows shorter texts."""
    instant_ms = parse_instant(text)
    try:
        found = rfc3339_ms(text.encode())
    except InvalidLifetime:
        assert instant_ms is None
    else:
        assert instant_ms is None or found == max(0, instant_ms)
        assert instant_ms is not None or found > LATEST_MS

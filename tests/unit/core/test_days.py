"""Dates there and back."""

from datetime import date, timedelta
from random import Random

import pytest

from lapse.core.days import date_of, days_since_1970


@pytest.mark.feature("Q24", "L3")
def test_a_date_is_that_of_its_days() -> None:
    random, begin = Random(7), date(1970, 1, 1)
    near = [*range(-800, 800), *range(10_900, 11_100), *range(47_400, 47_600)]
    for days in [*near, *(random.randrange(-700_000, 2_932_896) for _ in range(5_000)), 2_932_896]:
        there = begin + timedelta(days)
        assert date_of(days) == (there.year, there.month, there.day)
        assert days_since_1970(*date_of(days)) == days

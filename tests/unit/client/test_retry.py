"""What a consumer raises to have its message again later."""

from datetime import timedelta

import pytest

from lapse_client import Retry


@pytest.mark.feature("Q24")
@pytest.mark.parametrize(
    ("after", "delay_ms"),
    [
        (None, None),
        (0, 0),
        (1, 1_000),
        (0.1, 100),
        (0.0001, 1),
        (1e-9, 1),
        (2.5, 2_500),
        (timedelta(minutes=1), 60_000),
    ],
)
def test_a_delay_in_seconds_is_reported_in_ms(after: float | timedelta | None, delay_ms: int | None) -> None:
    assert Retry(after).delay_ms == delay_ms
    assert str(Retry(after)) == ("retry" if delay_ms is None else f"retry after {delay_ms} ms")


@pytest.mark.feature("Q24", "X7")
@pytest.mark.parametrize("after", [-1, -0.001, float("nan"), float("inf"), True, "5s", timedelta(days=-1), 1e15])
def test_what_is_no_delay_is_refused_where_it_is_raised(after: object) -> None:
    with pytest.raises(ValueError, match="expected a timedelta, or a number of seconds of 0 or more"):
        Retry(after)

"""What a process logs that tries again and again."""

import pytest

from lapse.log_limit import LogLimit


@pytest.mark.feature("X7")
def test_the_same_error_is_logged_once_in_a_minute_whatever_librdkafka_measured() -> None:
    limit = LogLimit()
    lines = [("down (after 2 ms)", 0), ("down (after 7ms in state CONNECT)", 1), ("gone", 2), ("down (after 2 ms)", 59)]
    assert [limit.allows(*line) for line in [*lines, ("down", 60), ("down", 61)]] == [
        True,
        False,
        True,
        False,
        True,
        False,
    ]

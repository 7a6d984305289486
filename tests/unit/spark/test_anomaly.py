from datetime import UTC, datetime, timedelta

import pytest

from lapse_spark import anomaly, local_rows

pytestmark = [pytest.mark.spark, pytest.mark.feature("D1")]

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def counted(spark):
    def make(**letters):
        """Letters of an entity by hour; None: no row at all."""
        rows = [
            (entity, NOON + timedelta(hours=hour), NOON + timedelta(hours=hour + 1), number)
            for entity, numbers in letters.items()
            for hour, number in enumerate(numbers)
            if number is not None
        ]
        return local_rows.frame(
            spark, rows, "entity string, window_start timestamp, window_end timestamp, letters long"
        )

    return make


def found(rows):
    return [(row.entity, row.window_start.hour, row.letters, round(row.expected, 2)) for row in rows.collect()]


def test_windows_far_above_those_before_are_unusual(counted):
    rows = counted(
        steady=[100, 104, 98, 101, 103, 99],
        burst=[2, 3, None, 1, 2, 40],  # the missing one counts as none
        sudden=[None, None, None, None, 12, None],
        small=[None, None, None, None, 9, None],
        wild=[10, 300, 20, 250, 5, 280],
        early=[None, 500, None, None, None, None],  # nothing to compare it with yet
    )
    assert found(anomaly.unusual(rows)) == [("burst", 17, 40, 1.6), ("sudden", 16, 12, 0.0)]
    assert found(anomaly.unusual(rows, at_least=5, sigmas=9))[-1] == ("small", 16, 9, 0.0)
    rate = anomaly.rates(rows).where("entity = 'wild' AND letters = 300").head()
    assert rate.per_minute == 5.0

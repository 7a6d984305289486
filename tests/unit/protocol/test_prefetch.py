"""Few deliveries against a backlog: messages that nobody saw could leave (C24)."""

import pytest

from lapse.protocol.prefetch import max_deliveries_warning


@pytest.mark.feature("C24")
@pytest.mark.parametrize(
    ("max_deliveries", "max_backlog", "warned"),
    [
        (0, None, False),
        (1, None, True),
        (2, 2, True),
        (2, 1, False),
        (1, 0, False),
        (3, None, False),
        (1, 10_000, True),
    ],
)
def test_a_warning_where_clients_that_die_could_use_up_what_nobody_saw(
    max_deliveries: int, max_backlog: int | None, warned: bool
) -> None:
    advice = max_deliveries_warning("orders", max_deliveries, max_backlog)
    assert (advice is not None) == warned
    if advice is not None:
        assert "queue orders" in advice
        assert "Raise max_deliveries" in advice

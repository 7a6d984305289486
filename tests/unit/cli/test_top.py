"""`lapse top` while no broker answers."""

import pytest

from lapse.cli.top import _Look
from lapse_client import Connection


@pytest.mark.feature("Q15", "X7")
def test_nobody_waits_for_the_names_of_missing_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of all topics is waited for 15 s. Each look of `lapse top` would take so long."""
    asked: list[str] = []

    def partitions(_: Connection, *expected: str) -> dict[str, int]:
        asked.append("all topics")
        return {}

    monkeypatch.setattr(Connection, "partitions", partitions)
    assert _Look([], Connection("127.0.0.1:1"), follows=False)._lacking(["orders"]) == {}
    assert not asked

"""What tests of the queue's core share."""

import pytest

from support.suite.at_length import alike
from unit.core.queue.world import World


@pytest.fixture(params=alike(None, 0), ids=["memory", "disk"])
def each_room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test once with all state in memory, and once with nothing there that is not worked on (Q16)."""
    monkeypatch.setattr(World, "room", request.param)

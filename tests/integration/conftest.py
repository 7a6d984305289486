"""Fixtures of the integration tests: workers, and their logs where a test fails."""

import pytest

from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from support.kafka.wire import Wire
from support.processes.deployment import deploy, served
from support.processes.deployment_hooks import (
    pytest_fixture_setup,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_teardown,
)
from support.processes.gateway import gateway, shop
from support.programs.browser import browser, view

__all__ = [
    "browser",
    "deploy",
    "gateway",
    "pytest_fixture_setup",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_teardown",
    "served",
    "shop",
    "view",
]

_HOUR_MS = 3_600_000


@pytest.fixture
def dead(kafka, unique, create_topic):
    """A queue with a dead-letter topic of two partitions; `dead(first, last, reason)` writes them, ten an hour."""
    name, wire = unique("q"), Wire(kafka)
    create_topic(topic.dead_letters(name), partitions=2)
    # The queue was not deleted; the broker stamps commands, by which clients know its clock.
    create_topic(topic.commands(name), config={"message.timestamp.type": "LogAppendTime"})

    def write(first, last, *reasons):
        for offset in range(first, last):
            wire.letter(name, Bookmark("orders", 0, offset), *reasons, expired_at_ms=offset * _HOUR_MS // 10)
        wire.flush()

    write.wire, write.name, write.pattern = wire, name, topic.dead_letters(name).replace(".", "[.]")
    return write

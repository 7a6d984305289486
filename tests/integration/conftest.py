"""Fixtures of the integration tests: workers, and their logs where a test fails."""

from collections.abc import Iterator

import pytest

from lapse.protocol import topic
from lapse.protocol.bookmark import Bookmark
from support.browser import browser, view
from support.deployment import LIVE, deploy, served
from support.gateway import gateway, shop
from support.wire import Wire

__all__ = ["browser", "deploy", "gateway", "served", "shop", "view"]

_HOUR_MS = 3_600_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        for deployment in LIVE:
            report.sections.append((f"workers of {deployment.app_id}", deployment.logs()))
    return report


@pytest.fixture
def dead(kafka, unique, create_topic):
    """A queue with a dead-letter topic of two partitions; `dead(first, last, reason)` writes them, ten an hour."""
    name, wire = unique("q"), Wire(kafka)
    create_topic(topic.dead_letters(name), partitions=2)

    def write(first, last, *reasons):
        for offset in range(first, last):
            wire.letter(name, Bookmark("orders", 0, offset), *reasons, expired_at_ms=offset * _HOUR_MS // 10)
        wire.flush()

    write.wire, write.name, write.pattern = wire, name, topic.dead_letters(name).replace(".", "[.]")
    return write

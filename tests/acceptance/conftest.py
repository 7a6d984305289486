"""Fixtures of the acceptance tests: workers, and their logs where a test fails."""

from collections.abc import Iterator

import pytest

from support.deployment import LIVE, deploy, served

__all__ = ["deploy", "served"]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        for deployment in LIVE:
            report.sections.append((f"workers of {deployment.app_id}", deployment.logs()))
    return report

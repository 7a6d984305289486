"""The logs of all workers that run, in the report of a test that fails."""

from collections.abc import Iterator

import pytest

from support.deployment import LIVE


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add them; for the folders whose `conftest.py` takes this hook."""
    report = yield
    if report.failed:
        for deployment in LIVE:
            report.sections.append((f"workers of {deployment.app_id}", deployment.logs()))
    return report

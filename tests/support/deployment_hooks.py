"""What becomes of deployments around a test: their logs if it fails, and their end if it made them itself.

For the folders whose `conftest.py` takes these hooks.
"""

from collections.abc import Iterator

import pytest

from support.deployment import LIVE, Deployment

_MADE = pytest.StashKey[list[Deployment]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the logs of all workers to the report of a test that fails."""
    report = yield
    if report.failed:
        for deployment in LIVE:
            report.sections.append((f"workers of {deployment.app_id}", deployment.logs()))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note which deployments a test makes, beside those of its fixtures."""
    before = list(LIVE)
    try:
        return (yield)
    finally:
        item.stash[_MADE] = [one for one in LIVE if one not in before]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End them: a worker that idles until the end of its file takes from all other tests."""
    try:
        return (yield)
    finally:
        for deployment in item.stash.get(_MADE, []):
            deployment.close()

"""pytest hooks that show the logs of deployments when a test fails, and close those that the test made itself.

Those of the test's own fixtures are closed with it, too.

Of deployments that the tests of a file share they close the tails that the test opened.

They hold in folders whose `conftest.py` imports them.
"""

from collections.abc import Iterator

import pytest

from support.kafka import left_topics
from support.processes.deployment import LIVE, Deployment

_MADE = pytest.StashKey[list[Deployment]]()
_TAILS = pytest.StashKey[dict[Deployment, int]]()
"""How many tails each deployment had before the test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the logs of all workers to the report of a test that fails."""
    report = yield
    if report.failed:
        for deployment in LIVE:
            report.sections.append((f"workers of {deployment.app_id}", deployment.logs()))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> Iterator[object]:
    """Store which deployments a fixture makes for one test."""
    before = list(LIVE)
    try:
        return (yield)
    finally:
        if fixturedef.scope == "function":
            request.node.stash.setdefault(_MADE, []).extend(one for one in LIVE if one not in before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Store which deployments a test makes besides those of its fixtures, and which tails it opens."""
    before = list(LIVE)
    item.stash[_TAILS] = {one: len(one.tails) for one in before}
    try:
        return (yield)
    finally:
        item.stash.setdefault(_MADE, []).extend(one for one in LIVE if one not in before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Close the deployments of the test: idle workers and tails would slow down all other tests until their file's end.

    Their topics are deleted before another deployment begins.
    """
    try:
        return (yield)
    finally:
        for deployment in item.stash.get(_MADE, []):
            deployment.close()
            left_topics.leave(deployment.servers, token=deployment.token)
        for deployment, first in item.stash.get(_TAILS, {}).items():
            deployment.close_tails(first)

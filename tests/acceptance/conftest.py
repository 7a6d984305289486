"""Fixtures of the acceptance tests: workers, and their logs where a test fails."""

from support.processes.deployment import deploy, served
from support.processes.deployment_hooks import (
    pytest_fixture_setup,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_teardown,
)

__all__ = [
    "deploy",
    "pytest_fixture_setup",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_teardown",
    "served",
]

"""Fixtures of the acceptance tests: workers, and their logs where a test fails."""

from support.deployment import deploy, served
from support.worker_logs import pytest_runtest_makereport

__all__ = ["deploy", "pytest_runtest_makereport", "served"]

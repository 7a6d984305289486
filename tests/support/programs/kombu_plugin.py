"""A plugin of pytest, for kombu's own tests: what asks for a transport in memory gets one of lapse (X3)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import kombu
import pytest

import lapse_kombu  # noqa: F401  # kombu knows `lapse://`

ADDRESS, DEPLOYMENT, RESULTS = (os.environ[f"KOMBU_{name}"] for name in ("ADDRESS", "DEPLOYMENT", "RESULTS"))
_REPLACED = {"memory", "memory://", "kombu.transport.virtual:Transport"}
_results: dict[str, str] = {}
_open = kombu.Connection.__init__


def _of_lapse(self: kombu.Connection, hostname: Any = None, *rest: Any, **options: Any) -> None:
    """Open a connection to lapse instead of one of `_REPLACED`."""
    if {options.get("transport"), hostname if isinstance(hostname, str) else None} & _REPLACED:
        hostname = f"lapse://{ADDRESS}"
        options.pop("transport", None)
    if str(hostname).startswith("lapse://"):
        options["transport_options"] = {"deployment": DEPLOYMENT, **(options.get("transport_options") or {})}
    _open(self, hostname, *rest, **options)


kombu.Connection.__init__ = _of_lapse


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(f"lapse://{ADDRESS}")


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("lapse://localhost:12345")


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(f"lapse://localhost:12345;lapse://{ADDRESS}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how each test ended. What stands in their teardown is about kombu's own classes, and does not count."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        _results[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write all results."""
    Path(RESULTS).write_text(json.dumps(_results), "utf-8")

"""What `lapse doctor` says of this machine's clock (Q15, L13)."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.config import Config
from lapse.core.error_code import ErrorCode
from lapse.doctor.finding import Finding, Verdict
from lapse.doctor.service import _clock, _refused
from lapse_client.error import CommandFailed, LapseError

CONFIG = Config.model_validate({"lapse": {"max_clock_skew": "1s"}})


def broker_that_is(behind_ms: float, *, measured: bool = True) -> Any:
    clock = SimpleNamespace(is_measured=measured, now_ms=lambda: time.time() * 1000 - behind_ms)
    return SimpleNamespace(clock=clock)


@pytest.mark.feature("Q15", "L13")
@pytest.mark.parametrize(
    ("behind_ms", "message"), [(60_500, "ahead of the broker's"), (-60_500, "behind the broker's")]
)
def test_a_clock_that_is_wrong_is_reported(behind_ms: float, message: str) -> None:
    (found,) = _clock(CONFIG, broker_that_is(behind_ms))
    assert found.verdict is Verdict.WARNING
    assert found.text.startswith("60")
    assert found.text.endswith(message)
    assert "NTP" in found.remedy


@pytest.mark.feature("Q15", "L13")
def test_a_clock_that_nobody_has_measured_is_not_judged() -> None:
    assert list(_clock(CONFIG, broker_that_is(60_500, measured=False))) == []
    (found,) = _clock(CONFIG, broker_that_is(0))
    assert found.verdict is Verdict.FINE


@pytest.mark.feature("Q15", "X4")
def test_a_worker_that_refuses_us_is_not_said_to_be_away() -> None:
    def found(error: Exception) -> Finding:
        return _refused("queue orders", error)

    for code in (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN):
        answer: Any = SimpleNamespace(code=code, partition=0, command="depth", error="the command bears no user")
        one = found(CommandFailed("orders", answer))
        assert one.verdict is Verdict.WARNING
        assert one.text.startswith("is served, ")
        assert "LAPSE_USER" in one.remedy
    assert "lapse worker" in found(LapseError("the answer was cut")).remedy

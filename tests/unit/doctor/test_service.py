"""What `lapse doctor` says of this machine's clock, and of entities that answer late (Q15, L13)."""

from __future__ import annotations

import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.config import Config
from lapse.core.error_code import ErrorCode
from lapse.doctor import service
from lapse.doctor.finding import Finding, Verdict
from lapse.doctor.service import _clock, _EntityRequest, _refused, _with_slow_again
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


@pytest.mark.feature("Q15")
@pytest.mark.parametrize(("most", "warned"), [(10, 0), (0, 30)], ids=["at the first question", "always"])
def test_entities_that_are_slow_because_all_were_asked_are_asked_again(
    most: int, warned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of hundreds of queues answers all of them within a few seconds, and each by itself at once."""
    now_s, waiting = [0.0], list[Future[dict[str, Any]]]()
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])

    def depth(_: str) -> Future[dict[str, Any]]:
        waiting.append(Future())
        return waiting[-1]

    def answers(asked: list[Future[dict[str, Any]]], _: float) -> None:
        now_s[0] += 2.0 if len(asked) > most else 0.1
        while waiting:
            waiting.pop().set_result({})

    client: Any = SimpleNamespace(depth=depth)
    monkeypatch.setattr(service, "wait", answers)
    requests = [_EntityRequest("queue", f"q{number}", client) for number in range(30)]
    answers([one.answer for one in requests], 5.0)
    found = [one for request in _with_slow_again(requests) for one in request.findings()]
    assert len(found) == 30
    assert [one.verdict for one in found].count(Verdict.WARNING) == warned

"""A process that was asked to end does so within its time, unless its work ends before."""

import logging
import os
import signal
import threading

import pytest

from lapse import process_end


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the process would have ended."""
    event = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: event.set() if code == 0 else None)
    return event


def test_a_process_ends_though_its_work_does_not(ended: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    with process_end.bounded_end(0.01, logging.getLogger("lapse"), "the worker", "Nothing is lost") as begin:
        begin()
        begin()  # a second signal changes nothing
        assert ended.wait(20)
    assert "within 0.01 s, and the worker ends all the same. Nothing is lost" in caplog.text


def test_who_ends_in_time_is_not_ended(ended: threading.Event) -> None:
    with process_end.bounded_end(3_600, logging.getLogger("lapse"), "the worker", "Nothing is lost") as begin:
        begin()
        timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    for timer in timers:
        timer.join(20)
    assert timers
    assert not ended.is_set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_work_and_leaves_no_handler_behind(ended: threading.Event, number: signal.Signals) -> None:
    stopped, before = threading.Event(), signal.getsignal(number)
    log = logging.getLogger("lapse")
    with process_end.ended_by_signals(3_600, log, "the transfer", "It is resumed", stopped.set):
        signal.raise_signal(number)
        assert stopped.wait(20)
    assert signal.getsignal(number) is before
    assert not ended.is_set()

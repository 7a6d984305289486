"""An error that comes again and again is told once a minute, and another one at once."""

import logging

import pytest

from lapse.runtime.repeated_error import RepeatedError


@pytest.mark.feature("Q23", "X7")
def test_the_same_error_is_reported_once_a_minute_and_another_one_at_once(caplog: pytest.LogCaptureFixture) -> None:
    repeated = RepeatedError(logging.getLogger("lapse.test"), "the topic is tried again")
    for now_s in (0.0, 0.5, 59.9, 60.0):
        repeated.note(ValueError("no right"), now_s)
    repeated.note(OSError(), 60.1)
    repeated.note(ValueError("no right"), 60.2)
    assert caplog.messages == [
        "the topic is tried again: no right",
        "the topic is tried again: no right (2 times since this was logged)",
        "the topic is tried again: OSError",
        "the topic is tried again: no right",
    ]

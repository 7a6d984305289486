"""What librdkafka says again and again is told once in a while."""

import logging

import pytest

from lapse_client.kafka.log import Seldom, log

REFUSED = "FAIL [%s#consumer-%d] [thrd:b:1/bootstrap]: b:1/bootstrap: Connect to b failed (after %dms in state CONNECT)"


@pytest.mark.feature("X7")
def test_lines_that_differ_in_numbers_only_are_reported_once_in_half_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    here = logging.getLogger("test_kafka_log")
    here.addFilter(Seldom(30, lambda: now[0]))
    caplog.set_level(logging.DEBUG)
    for attempt in range(600):
        now[0] = attempt / 10
        here.error(REFUSED, "vm:7", attempt % 3, attempt)
        here.info("DEBUG %d", attempt)
    here.error("another one")
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    again = "(299 more like this since the last one)"
    assert logged == [REFUSED % ("vm:7", 0, 0), f"{REFUSED % ('vm:7', 0, 300)} {again}", "another one"]
    assert len(caplog.records) == 603, "what is no warning is told as it comes"


@pytest.mark.feature("X7")
def test_the_log_of_clients_is_such_a_log(caplog: pytest.LogCaptureFixture) -> None:
    for attempt in range(100):
        log.error(REFUSED, "test_the_log", attempt, attempt)
    assert len(caplog.records) == 1

"""What of the libraries' lines reaches a worker's log, and in which form."""

import json
import logging
import sys

import orjson
import pytest
from aiokafka.errors import GroupCoordinatorNotAvailableError

from lapse.runtime.worker_log import Condensed, JsonFormatter, TextFormatter


def record(name: str, level: int, text: str, at_s: float = 0.0) -> logging.LogRecord:
    made = logging.LogRecord(name, level, "", 0, text, (), None)
    made.created = at_s
    return made


def test_lines_of_libraries_below_errors_are_left_out() -> None:
    condensed = Condensed()
    assert not condensed.filter(record("faust.app", logging.INFO, "a table"))
    assert not condensed.filter(record("mode.timers", logging.WARNING, "Task timed out!"))
    assert not condensed.filter(record("lapse.runtime.application", logging.INFO, "[^-LapseApp]: Ready"))
    assert condensed.filter(record("lapse.runtime.shard.served_entity", logging.INFO, "restored"))
    assert condensed.filter(record("faust.app", logging.CRITICAL, "crashed"))


def test_errors_of_libraries_come_once_a_minute_with_a_count() -> None:
    condensed = Condensed()
    errors = [record("aiokafka.conn", logging.ERROR, "no broker", at_s) for at_s in (0.0, 1.0, 2.0, 59.0, 61.0)]
    assert [condensed.filter(one) for one in errors] == [True, False, False, False, True]
    assert errors[-1].getMessage() == "no broker (3 more since 1970-01-01T00:00:00+00:00)"
    assert condensed.filter(record("aiokafka.conn", logging.ERROR, "another thing", 62.0))
    assert all(condensed.filter(record("lapse.x", logging.ERROR, "ours", 0.0)) for _ in range(3))


@pytest.mark.feature("X7")
def test_what_a_library_meets_by_trying_again_is_reported_only_if_it_goes_on() -> None:
    condensed = Condensed()

    def passing(at_s: float) -> logging.LogRecord:
        made = record("aiokafka.consumer", logging.ERROR, "Group Coordinator Request failed: %s", at_s)
        made.args = (GroupCoordinatorNotAvailableError(),)
        return made

    assert [condensed.filter(passing(at_s)) for at_s in (0.0, 0.1, 4.9, 5.0, 6.0)] == [False, False, False, True, False]
    assert [condensed.filter(passing(at_s)) for at_s in (100.0, 104.0, 110.0)] == [False, False, True]


def test_json_is_one_object_per_record() -> None:
    one = record("lapse.x", logging.WARNING, 'a "text"\nof two lines', 1.5)
    assert "facts" not in orjson.loads(JsonFormatter().format(one))
    one.facts = {"did": "purge", "removed": 4}
    line = orjson.loads(JsonFormatter().format(one))
    assert line.pop("facts") == {"did": "purge", "removed": 4}
    assert line["message"] == 'a "text"\nof two lines'
    assert line["level"] == "warning"
    assert line["at"] == "1970-01-01T00:00:01.500+00:00"


@pytest.mark.feature("X7")
def test_a_record_is_a_line_whatever_words_of_others_are_in_it() -> None:
    forged = "x\n[2026-11-26 00:00:00,000] [1] [ERROR] forged \x1b[2J\x85\u2028"
    made = record("lapse.x", logging.WARNING, "key %s")
    made.args = (forged,)
    line = TextFormatter().format(made)
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.endswith(r"key x\n[2026-11-26 00:00:00,000] [1] [ERROR] forged \x1b[2J\x85\u2028")
    try:
        raise ValueError(forged)
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *others = TextFormatter().format(made).splitlines()
    assert first == line
    assert others[0] == "  Traceback (most recent call last):"
    assert all(other.startswith("  ") and other.isprintable() for other in others)
    assert "\n" not in JsonFormatter().format(made)


@pytest.mark.feature("X7")
def test_json_is_json_whatever_is_in_it() -> None:
    for text, facts in (("\udcff", {}), ("big", {"n": 1 << 80}), ("keys", {1: {("a", "b"): object()}})):
        made = record("lapse.x", logging.WARNING, text)
        made.facts = facts
        assert json.loads(JsonFormatter().format(made))["message"] == text

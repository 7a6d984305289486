"""`lapse dlq redrive` over many letters: what it keeps, and what its audit has when it is killed."""

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lapse.cli.dlq import _audited
from lapse.cli.redrive_summary import RedriveSummary
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import LapseError
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.letters.redrive import Choice, Line, Target, plan

pytestmark = pytest.mark.feature("D5")


class Noticed:
    """Its end is noticed."""


class Payload(bytes):
    """A payload whose end is noticed."""

    noticed: Noticed


def letter(number: int, value: bytes = b"{}") -> DeadLetter:
    facts: dict[str, Any] = {
        "key": None, "value": value, "bookmark": Bookmark("dlq.q", 0, number), "timestamp_ms": 2_000,
        "origin": Bookmark("q", 0, number), "entity": "q", "reasons": ("time_limit",), "message": "",
        "delivery_count": 1, "cancel_count": 0, "expires_at_ms": 900, "expired_at_ms": 1_000,
        "redriven_count": number % 2 * 5, "lapse_id": f"q/q:0:{number}/0", "headers": [],
    }  # fmt: skip
    return DeadLetter(**facts)


def planned(letters: Iterator[DeadLetter]) -> Iterator[Line]:
    return plan(letters, Choice(), Target(), now_ms=950)


def test_letters_are_counted_and_not_kept() -> None:
    """A topic of letters may be larger than the memory."""
    ended: list[int] = []

    def letters() -> Iterator[DeadLetter]:
        for number in range(100):
            value = Payload(b"{}")
            value.noticed = Noticed()
            weakref.finalize(value.noticed, ended.append, number)
            yield letter(number, value)
            del value

    summary = RedriveSummary("default")
    for _ in summary.counting(planned(letters())):
        pass
    assert len(ended) >= 99
    assert summary.ready == 50
    assert [(row["refused"], row["letters"], row["deadline_passed"]) for row in summary.rows()] == [
        ("", 50, 50),
        ("loop limit", 50, 50),
    ]


def test_an_audit_has_each_letter_as_soon_as_it_is_sent(tmp_path: Path) -> None:
    """A process that was killed left out the last ones, which its next run does not send again."""
    audit = tmp_path / "audit.jsonl"
    (line,) = planned(iter([letter(0)]))
    with _audited(audit, lambda: 17) as record:
        record(line, "")
        assert json.loads(audit.read_bytes())["at_ms"] == 17


def test_an_audit_that_cannot_be_written_any_more_is_named() -> None:
    (line,) = planned(iter([letter(0)]))
    with _audited(Path("/dev/full"), lambda: 17) as record, pytest.raises(LapseError, match="--audit /dev/full"):
        record(line, "")

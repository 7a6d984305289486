"""The example of "Exactly once" for a database does what the page says (X9)."""

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lapse.testing import Lapse

PAGE = Path(__file__).parents[3] / "docs" / "exactly-once.md"


@pytest.mark.feature("X9")
def test_a_message_that_comes_again_changes_the_database_once(lapse: Lapse) -> None:
    (block,) = [
        one
        for one in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        if "sqlite3" in one
    ]
    page: dict[str, Any] = {}
    exec(block, page)  # it is the page's example
    database = sqlite3.connect(":memory:")
    database.executescript(page["TABLES"])
    lapse.queue("payments", lease_period="30s")
    with lapse.publisher() as publisher:
        for amount in (b"1", b"20", b"300"):
            publisher.publish("payments", amount)
    with lapse.subscriber("payments", 1) as dying:
        first = dying.receive(timeout=5)
        assert first is not None
        page["book"](database, first)
        lapse.lose(dying)
        lapse.clock.advance(60)
        page["work"](database, "payments")
    assert database.execute("SELECT amount FROM balance").fetchall() == [(321,)]
    assert lapse.depth("payments") == 0

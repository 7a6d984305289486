"""Every snippet of Python on the pages is run: here on the core in memory, unless a test of its own runs it.

What a snippet leaves to the reader (`handle`, `payload`, a password) is given here. A loop without an end is left when
what it calls has seen enough, and raises.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.core.expression import SparkColumn, SparkColumns, to_spark_sql
from lapse.testing import Lapse
from lapse_client import LapseError, Queue

ROOT = Path(__file__).parents[3]
ELSEWHERE = {
    "docs/from-celery.md": "tests/unit/testing/test_recipes.py",
    "docs/from-mqe.md": "tests/unit/testing/test_coming_from.py",
    "docs/protocol.md": "tests/integration/client/test_shell_consumer.py",
    "docs/spark.md": "tests/integration/spark/test_spark_cluster.py",
    "docs/testing-your-consumers.md": "tests/unit/testing/test_page.py",
}
"""Pages whose snippets a test of their own runs; recipes and tutorials besides."""

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENDLESS = re.compile(r"^ *for \w+ in (?:subscriber|\w+\.messages\(\)):", re.MULTILINE)


def snippets() -> list[Any]:
    pages = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))]
    names = {page: page.relative_to(ROOT).as_posix() for page in pages}
    return [
        pytest.param(block, id=f"{names[page]}-{number}")
        for page in pages
        if names[page] not in ELSEWHERE
        for number, block in enumerate(BLOCK.findall(page.read_text("utf-8")))
    ]


class Enough(Exception):
    """The first message came, and the loop would go on for ever."""


class Database:
    """What the page on queues calls a database: a transaction, and rows by name."""

    def __init__(self) -> None:
        self.done: set[str] = set()

    @contextlib.contextmanager
    def transaction(self) -> Any:
        yield self

    def insert_if_absent(self, table: str, row: str) -> bool:
        new = row not in self.done
        self.done.add(row)
        return new


class Frame:
    """A table of Spark, as far as a filter is concerned."""

    def filter(self, condition: str) -> None:
        assert "price" in condition


def shop(lapse: Lapse) -> None:
    """The queues and SOW topics that snippets speak of, with something in them."""
    for topic in ("orders-in", "shipments", "invoices"):
        lapse.topic(topic)
    lapse.queue("orders", topics=["orders", "orders-in"], expiration="enabled")
    lapse.sow("prices", key="/symbol")
    lapse.queue("reports")
    with lapse.publisher() as publisher:
        publisher.publish("orders", b'{"id": 7, "symbol": "A"}')
        for number in range(20):
            publisher.publish("orders-in", b'{"id": %d, "symbol": "A"}' % number)
        publisher.publish("prices", b'{"symbol": "A", "price": 700}', key='["A"]')


@pytest.fixture
def readers(lapse: Lapse, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a reader has: a deployment with some messages, and names for what a snippet leaves open."""
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "http://localhost:8081")
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda _: None)
    if "create_queue" not in request.node.callspec.params["snippet"]:
        shop(lapse)
    payload = {"price": 20, "qty": 6, "symbol": "A"}
    message = SimpleNamespace(
        payload=payload, headers={}, key=None, topic="orders", partition=0, offset=0, timestamp_ms=0
    )
    return {
        "os": os, "key": "ab" * 32, "password": "secret", "schema": '{"type": "string"}', "payload": payload,
        "message": message, "database": Database(), "frame": Frame(), "SparkColumn": SparkColumn,
        "SparkColumns": SparkColumns, "to_spark_sql": to_spark_sql,
    }  # fmt: skip


@pytest.mark.feature("X8")
@pytest.mark.parametrize("snippet", snippets())
def test_a_snippet_runs(lapse: Lapse, readers: dict[str, Any], snippet: str) -> None:
    endless = ENDLESS.search(snippet) is not None

    def look(*_: object, **__: object) -> None:
        if endless:
            raise Enough

    bills: list[bytes] = []

    def bill(value: bytes) -> bytes:
        bills.append(value)
        if len(bills) > 1:
            raise Enough
        return b"bill"

    names = {**readers, "handle": look, "print": look, "ship": bytes.upper, "bill": bill}
    code = compile(snippet, "snippet", "exec")
    with contextlib.ExitStack() as open_now:
        if "in subscriber:" in snippet and "as subscriber" not in snippet:
            names["subscriber"] = open_now.enter_context(lapse.subscriber("orders", 10))
        if endless:
            with pytest.raises(Enough):
                exec(code, names)  # it is the page's
        else:
            exec(code, names)  # it is the page's


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_what_is_run_elsewhere_is(page: str, test: str) -> None:
    assert Path(page).name in (ROOT / test).read_text("utf-8")


@pytest.mark.feature("Q27")
def test_the_page_on_requests_asks_and_is_answered(lapse: Lapse, tmp_path: Path) -> None:
    page = (ROOT / "docs/requests.md").read_text("utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "lapse.toml").write_text(settings, "utf-8")
    lapse.load(tmp_path / "lapse.toml")
    printed: list[bytes] = []
    names: dict[str, Any] = {"print": printed.append}
    exec(BLOCK.findall(page)[0], names)  # it is the page's

    def answer() -> None:
        with contextlib.suppress(LapseError):  # the queue is deleted below, which ends it
            names["answer"]()

    answering = threading.Thread(target=answer)
    answering.start()
    names["ask"]()
    assert printed == [b'{"price": 7}']
    with Queue("quotes") as queue:
        queue.delete(force=True)
    lapse.clock.advance(15)  # the consumer hears of it by its next heartbeat
    answering.join(10)
    assert not answering.is_alive()

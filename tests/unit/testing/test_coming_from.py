"""The examples of the pages for users of AMPS and MQe do what the pages say, as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lapse.testing import Lapse

DOCS = Path(__file__).parents[3] / "docs"
QUEUES = ("ORDERS_ANALYTICS", "ORDERS_RISK")


def example() -> tuple[str, dict[str, set[str]]]:
    """The configuration, and by what is published to the queues that deliver it."""
    page = (DOCS / "from-amps.md").read_text(encoding="utf-8")
    part = page.split("## The same deployment, twice")[1].split("\n## ")[0]
    (toml,) = re.findall(r"```toml\n(.*?)```", part, re.DOTALL)
    lines = re.findall(r"^\| `(\w+)`[^|]* \| (.*) \|$", part, re.MULTILINE)
    return toml, {to: set(QUEUES) if by == "both" else set(re.findall(r"`(\w+)`", by)[:1]) for to, by in lines}


@pytest.mark.feature("Q1", "Q2")
def test_each_line_of_the_table_of_orders_holds(lapse: Lapse, tmp_path: Path) -> None:
    toml, table = example()
    assert len(table) == 5
    (tmp_path / "lapse.toml").write_text(toml)
    lapse.load(tmp_path / "lapse.toml")
    for topic in ("ORDERS", "ORDERS_ANALYTICS_DIRECT", "ORDERS_RISK_DIRECT"):
        lapse.topic(topic)
    with lapse.publisher() as publisher:
        for to, delivered_by in table.items():
            before = {name: lapse.depth(name) for name in QUEUES}
            publisher.publish(to, b"an order")
            assert {name for name in QUEUES if lapse.depth(name) > before[name]} == delivered_by, to


@pytest.mark.feature("L3", "L4")
def test_both_messages_of_mqe_have_their_deadlines(lapse: Lapse) -> None:
    lapse.queue("MyQueue", expiration="enabled")
    (snippet,) = re.findall(r"```python\n(.*?)```", (DOCS / "from-mqe.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(snippet, "docs/from-mqe.md", "exec"), {})
    with lapse.subscriber("MyQueue") as subscriber:
        delivery = subscriber.receive(timeout=5)
        assert delivery is not None
        assert delivery.expires_at_ms == lapse.clock.now_ms + 60_000
        delivery.acknowledge()
    (letter,) = lapse.dead_letters("MyQueue")
    assert (letter.reasons, letter.expires_at_ms) == (("time_limit",), 989_940_300_000)

"""The ORDERS example of the page for users of AMPS, as it is written there, does what its table says (Q2)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lapse.testing import Lapse

PAGE = Path(__file__).parents[3] / "docs" / "from-amps.md"
QUEUES = ("ORDERS_ANALYTICS", "ORDERS_RISK")


def example() -> tuple[str, dict[str, set[str]]]:
    """The configuration, and by what is published to the queues that deliver it."""
    part = PAGE.read_text(encoding="utf-8").split("## The same deployment, twice")[1].split("\n## ")[0]
    (toml,) = re.findall(r"```toml\n(.*?)```", part, re.DOTALL)
    lines = re.findall(r"^\| `(\w+)`[^|]* \| (.*) \|$", part, re.MULTILINE)
    return toml, {to: set(QUEUES) if by == "both" else set(re.findall(r"`(\w+)`", by)[:1]) for to, by in lines}


@pytest.mark.feature("Q1", "Q2")
def test_each_line_of_the_table_holds(lapse: Lapse, tmp_path: Path) -> None:
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

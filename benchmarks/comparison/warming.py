"""Warms a broker until its code is compiled: half of the messages go to a share group, half to a queue."""

from __future__ import annotations

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.peers import share_group
from benchmarks.queue import whole_life


def run(bootstrap_servers: str, messages: int = 3_000_000) -> Figures:
    """Run both sides on half of the messages each, and ignore their figures."""
    share_group.run(bootstrap_servers, messages // 2)
    whole_life.run(bootstrap_servers, messages // 2)
    return {"messages": messages}


if __name__ == "__main__":
    alone(run)

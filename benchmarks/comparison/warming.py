"""Has a broker serve messages until its code is compiled: half of them to a share group, half to a queue."""

from __future__ import annotations

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.peers import share_group
from benchmarks.queue import whole_life


def run(bootstrap_servers: str, messages: int = 3_000_000) -> Figures:
    """Let both sides drain their half; what they measure meanwhile is of no interest."""
    share_group.run(bootstrap_servers, messages // 2)
    whole_life.run(bootstrap_servers, messages // 2)
    return {"messages": messages}


if __name__ == "__main__":
    alone(run)

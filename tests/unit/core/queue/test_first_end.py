"""Nothing is imported while a lease ends for the first time: an import of tens of milliseconds held all queues up."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from types import SimpleNamespace as Record

from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step

before = set(sys.modules)
shard, step = QueueShard(QueueSettings(name="orders", lease_ms=100, max_deliveries=2, dead_letter_topic="dlq")), Step()
records = [Record(offset=offset, timestamp=1_000, key=None, value=b"{}", headers=()) for offset in range(10)]
shard.arrive("orders", 0, records, step)
shard.subscribing.subscribe("me", "a client", 5, 1_000, "", 1_000, step)
for now_ms in (1_000, 1_100, 1_200, 90_000):
    shard.advance(now_ms, step)
    shard.deliver(now_ms, step)
shard.settle(SettleAction.ACKNOWLEDGE, "me", [Claim("orders", 0, 5, 6)], 90_000, step)
shard.purge(90_000, step)
assert step.removals and not shard.depth()["depth"]
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
@pytest.mark.feature("Q5", "C90")
def test_nothing_is_imported_when_a_lease_ends_for_the_first_time() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stderr, done.stdout.strip()) == ("", "")

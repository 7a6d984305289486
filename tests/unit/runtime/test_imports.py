"""A worker imports what it needs before it serves: no import delays the first lease's end."""

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, json, sys
import lapse.runtime.application
from types import SimpleNamespace
from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import QueueSettings
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput

def record(offset, **fields):
    return SimpleNamespace(offset=offset, timestamp=1_000, key=None, value=b"{}", headers=[]).__class__(
        **{"offset": offset, "timestamp": 1_000, "key": None, "value": b"{}", "headers": [], **fields})

class Payloads:
    gone = ()
    def keep(self, topic, partition, records): pass
    async def get(self, topic, partition, offsets, used=True): return [record(offset) for offset in offsets]

settings = QueueSettings(name="orders", lease_ms=100, max_deliveries=2, dead_letter_topic="dlq.orders",
                         expiration=Expiration(True))
output = QueueOutput("orders", 0, 1, "dlq.orders", 1)
one = QueueMachine(settings, restore([]), 1, Payloads(), output, "orders")
one.take_over(1_000)

def command(at_ms, name, **fields):
    body = {"id": name, "command": name, "subscription": "s", **fields}
    one.command(record(0, timestamp=at_ms, value=json.dumps(body).encode()))

async def letters(some): return {}
def finish(): asyncio.run(one.finish(letters))

before = set(sys.modules)
one.arrive("orders", 0, [record(offset, headers=[("lapse-ttl-ms", b"5000")]) for offset in range(20)])
command(1_000, "subscribe", max_backlog=10, heartbeat_timeout_ms=1_000_000)
for now_ms in (1_000, 1_150, 1_300, 1_450, 9_000):
    one.advance(now_ms)
    one.deliver(now_ms)
    finish()
assert one.shard.depth()["depth"] == 0
print(" ".join(sorted(set(sys.modules) - before)))
"""


@pytest.mark.slow
@pytest.mark.feature("Q5")
def test_no_module_is_imported_in_the_first_lease_end() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []

"""Tests without Kafka: the real core and the real client, in memory, with a clock that only the test moves (X8).

`Lapse` has topics, shards and a virtual clock, and the client's own objects work with it as with a cluster. With
pytest, the fixture `lapse` is such an object, and every client object without a connection of its own uses it.
"""

from lapse.testing.cluster import NotAtRest
from lapse.testing.deployment import Lapse
from lapse.testing.shard import CrashPoint
from lapse.testing.virtual_clock import VirtualClock

__all__ = ["CrashPoint", "Lapse", "NotAtRest", "VirtualClock"]

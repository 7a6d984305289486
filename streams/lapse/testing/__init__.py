"""Tests without Kafka: the real core and the real client, in memory, with a clock that only a test moves (X8).

`Lapse` holds topics, shards and a virtual clock; the client's own objects work on it as on a cluster. With pytest, the
fixture `lapse` is one, and every client object without a connection of its own works on it.
"""

from lapse.testing.cluster import NotAtRest
from lapse.testing.deployment import Lapse
from lapse.testing.shard import CrashPoint
from lapse.testing.virtual_clock import VirtualClock

__all__ = ["CrashPoint", "Lapse", "NotAtRest", "VirtualClock"]

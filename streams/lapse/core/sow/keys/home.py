"""Home: the shard that holds a key, if keys come from payloads over several partitions (C46).

A record with such a key may be on any partition. So every shard reads all partitions, and keeps the keys whose hash,
murmur2 modulo the number of shards, is its number. Kafka's own partitioner computes the same for record keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MIX: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Home:
    """Decides which keys belong to a shard.

    Attributes:
        shard: number of the shard.
        shards: number of shards.
    """

    shard: int = 0
    shards: int = 1

    @property
    def shared(self) -> bool:
        """Whether other shards read the same records."""
        return self.shards > 1

    def holds(self, key: bytes) -> bool:
        """Return whether a key belongs to this shard."""
        return self.shards == 1 or (murmur2(key) & 0x7FFFFFFF) % self.shards == self.shard

    def reports_faults_of(self, partition: int) -> bool:
        """Return whether this shard reports faulty records of a partition, which have no key to decide by."""
        return self.shards == 1 or partition % self.shards == self.shard


EVERYTHING: Final = Home()
"""The home of all keys, for a single shard, and for shards that read different partitions."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of a key in Kafka's default partitioner."""
    size = len(data)
    whole = size & ~3
    result = _SEED ^ size
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MIX & _WORD
        result = (result * _MIX & _WORD) ^ ((word ^ word >> 24) * _MIX & _WORD)
    if size > whole:
        result = (result ^ int.from_bytes(data[whole:], "little")) * _MIX & _WORD
    result = (result ^ result >> 13) * _MIX & _WORD
    return result ^ result >> 15

"""The home of a key: which shard holds it where keys come from payloads over several partitions (C46).

Such a record may stand on any partition. So every shard reads all of them, and keeps the keys whose hash is its own:
murmur2 modulo the number of shards, which is also where Kafka's own partitioner puts a record with that key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_MIX: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Home:
    """Which keys are a shard's.

    Attributes:
        shard: number of the shard.
        shards: how many there are.
    """

    shard: int = 0
    shards: int = 1

    @property
    def shared(self) -> bool:
        """Whether other shards read the same records."""
        return self.shards > 1

    def holds(self, key: bytes) -> bool:
        """Whether a key is this shard's."""
        return self.shards == 1 or (murmur2(key) & 0x7FFFFFFF) % self.shards == self.shard

    def speaks_for(self, partition: int) -> bool:
        """Whether this shard is the one to tell of a faulty record, which has no key to go by."""
        return self.shards == 1 or partition % self.shards == self.shard


EVERYTHING: Final = Home()
"""The home of every key: there is one shard, or each reads a partition of its own."""


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash that Kafka's default partitioner takes of a key."""
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

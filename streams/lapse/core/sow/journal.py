r"""The journal of a SOW shard: one changelog record for each item of its state, the latest per key (S9, L9).

The first byte of a journal key says what the value is:

| first byte | rest of the key | value | tombstone once |
|---|---|---|---|
| `r` | the record's key | the record, packed as in `record` | it is removed |
| `s` | source (uint32), offset (int64) | a scheduled version, packed as in `version` | it took effect or left |
| `c` | the subscription's id | the subscription, as JSON | it ended |
| `t` | source (uint32) | topic, a zero byte, partition in decimal | never |
| `g` | the record's key | a tombstone, packed as in `tombstone` | it is old enough |
| `i` | number (uint64) | message ids of a batch, as JSON | the window is over |
| `y` | source (uint32), offset (int64) | a pending letter, packed as in `pending_letters` | it is safe |
| `o` | | `1`: an update of another deployment has arrived | never |
| `u` | | when a temporary SOW topic was last used, as JSON | never |
| `z` | | the topic's retirement, as JSON | it was decided against |
| `\x00` | | entries of the runtime | |

Kafka's compaction keeps the latest value of every key, and a shard is restored from these values alone.
"""

from __future__ import annotations

from typing import Final

RUNTIME: Final = b"\x00"
REPLICATED: Final = b"o"
RECORD: Final = b"r"
SCHEDULED: Final = b"s"
SUBSCRIPTION: Final = b"c"
SOURCE: Final = b"t"
TOMBSTONE: Final = b"g"
DYING: Final = b"y"
IDS: Final = b"i"

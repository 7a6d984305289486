"""Names of the record headers that lapse reads and writes.

Every value is UTF-8 text, except `EXPIRE_TIME`, which is binary (L4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lapse.core.letter import LAPSE_ID as LAPSE_ID
from lapse.core.letter import MESSAGE_ID as MESSAGE_ID

# The lifetimes of L2 to L5 are defined in the core, and re-exported here by `X as X`.
from lapse.core.lifetime import CE_EXPIRYTIME as CE_EXPIRYTIME
from lapse.core.lifetime import ENQUEUE_AT_MS as ENQUEUE_AT_MS
from lapse.core.lifetime import EXPIRE_TIME as EXPIRE_TIME
from lapse.core.lifetime import EXPIRES_AT_MS as EXPIRES_AT_MS
from lapse.core.lifetime import TTL_MS as TTL_MS

# The same holds for a message's retry delay (Q24), and for its counts at the source of a transfer (C73).
from lapse.core.retry_delay import RETRY_DELAY_MS as RETRY_DELAY_MS
from lapse.core.transfer_counts import TRANSFER_COUNTS as TRANSFER_COUNTS

# On a published record, besides the lifetimes of L2 to L5 (S2, X6, C29).
COMMAND: Final = "lapse-command"
ORIGINAL_MESSAGE_ID: Final = "lapse-original-message-id"
"""The producer's message id. Forwarding writes another one as `MESSAGE_ID` (C78)."""
REDRIVE_QUEUE: Final = "lapse-redrive-queue"
REDRIVEN_COUNT: Final = "lapse-redriven-count"
TRANSFER_FROM: Final = "lapse-transfer-from"
"""The queue and cluster that handed the message over. It may be handed back only there (C73)."""
TRANSFER: Final = "lapse-transfer"
"""`queue/id`: a transfer to that queue has put the record there. It is invisible until it is confirmed (Q17)."""

ORIGIN: Final = "lapse-origin"
"""The deployments that an update has passed through, in order, so that it never returns to one."""

ORIGIN_TIMESTAMP_MS: Final = "lapse-origin-timestamp-ms"
"""The instant of the update where it was published, ms since the epoch, as decimal text."""

ORIGIN_BOOKMARK: Final = "lapse-origin-bookmark"
"""The bookmark of the update, or of the one whose end is reported, where it was published; absent on a delete."""

ORIGIN_TARGET: Final = "lapse-origin-target"
"""The deployment to which the update is brought. So a shard learns the id of its own deployment."""

ORIGIN_NAMES: Final = frozenset({ORIGIN, ORIGIN_TIMESTAMP_MS, ORIGIN_BOOKMARK, ORIGIN_TARGET})
"""On a record that `lapse replicate` has brought: see `lapse.core.sow.arrival.origin` (S10)."""

# On a request, and `CORRELATION_ID` on its reply (Q27). They belong to the messages, and every delivery has them.
REPLY_TO: Final = "reply_to"
CORRELATION_ID: Final = "correlation_id"

ORIGINAL_NAMES: Final = {
    TTL_MS: "lapse-original-ttl-ms",
    EXPIRES_AT_MS: "lapse-original-expires-at-ms",
    EXPIRE_TIME: "lapse-original-expire-time",
    ENQUEUE_AT_MS: "lapse-original-enqueue-at-ms",
    CE_EXPIRYTIME: "lapse-original-ce_expirytime",
}
"""The name of each lifetime header on a dead letter, so that the letter does not expire by it (D2)."""

# On a command, if users are configured (X4).
USER: Final = "lapse-user"
SIGNED_AT_MS: Final = "lapse-signed-at-ms"
SIGNATURE: Final = "lapse-signature"

# On every record of `lapse.<name>.deliveries` (D4).
KIND: Final = "lapse-kind"
"""`delivery`, `packed`, `reference`, `barrier`, `answer`, `epoch`.

On a SOW topic also `group-begin`, `sow`, `group-end`, `publish`, `delta`, `oof`.
"""
SUBSCRIPTION: Final = "lapse-subscription"
COMMAND_ID: Final = "lapse-command-id"
EPOCH: Final = "lapse-epoch"
"""The epoch of the shard that wrote the record. Readers drop records of an epoch below one that they have seen.

It is also on dead letters. If two epochs wrote a message's fate, that of the higher epoch counts.
"""
SHARDS: Final = "lapse-shards"
"""The number of shards, on a record that announces the start of a shard's epoch."""
BOOKMARK: Final = "lapse-bookmark"
LEASE_UNTIL_MS: Final = "lapse-lease-until-ms"
DELIVERY_COUNT: Final = "lapse-delivery-count"
TIMESTAMP_MS: Final = "lapse-timestamp-ms"
LIFETIMES: Final = "lapse-lifetimes"
"""`ignored`, on deliveries with a deadline of a queue without expiration, since the deadline may have passed (L6)."""
LIFETIMES_IGNORED: Final = b"ignored"
OPERATION: Final = "lapse-operation"
"""Why an `oof` was sent. On a null value: `deleted`, or `expired` for the end of an update that may not have come."""
UNWRITTEN: Final = "lapse-unwritten"
"""On a tombstone of the compacted topic: the expired update was never written to this topic (S10)."""
ORDER_VALUE: Final = "lapse-order-value"
"""The value of `order_by` for a record, as JSON; absent if it is NULL or incomparable (S5)."""

# On a dead letter: the headers of KIP-1191, then those of lapse (D2).
DLQ_TOPIC: Final = "__dlq.errors.topic"
DLQ_PARTITION: Final = "__dlq.errors.partition"
DLQ_OFFSET: Final = "__dlq.errors.offset"
DLQ_GROUP: Final = "__dlq.errors.group"
DLQ_DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
DLQ_MESSAGE: Final = "__dlq.errors.message"
REASONS: Final = "lapse-reasons"
CANCEL_COUNT: Final = "lapse-cancel-count"
UNCONFIRMED_TRANSFER: Final = "lapse-unconfirmed-transfer"
"""Id of the transfer that put the record there. It died unconfirmed, so it is not redriven (C84)."""
EXPIRED_AT_MS: Final = "lapse-expired-at-ms"
NULL_VALUE: Final = "lapse-null-value"
"""The message's value was null. A null letter without this header has lost its payload, and is not redriven (C84)."""
RECORD_KEY: Final = "lapse-record-key"
"""The key of a SOW record if its payload makes the key, so that a redrive finds newer records of the key (C84)."""

DEAD_LETTER_NAMES: Final = frozenset(
    {
        DLQ_TOPIC,
        DLQ_PARTITION,
        DLQ_OFFSET,
        DLQ_GROUP,
        DLQ_DELIVERY_COUNT,
        DLQ_MESSAGE,
        REASONS,
        CANCEL_COUNT,
        EXPIRES_AT_MS,
        EXPIRED_AT_MS,
        REDRIVEN_COUNT,
        LAPSE_ID,
        EPOCH,
        UNCONFIRMED_TRANSFER,
        NULL_VALUE,
    }
)
"""Headers that a dead letter sets. Earlier ones are overwritten (D2)."""

PREFIX: Final = "lapse-"
FIRST_NAMES: Final = {
    name: f"{PREFIX}first-{name.removeprefix('__dlq.errors.').removeprefix(PREFIX).replace('.', '-')}"
    for name in sorted(DEAD_LETTER_NAMES - {REDRIVEN_COUNT})
}
"""The names of a dead letter's headers on the letter that is written when it dies itself (C54).

A redrive of the second letter restores their names, so the record is the first letter again. Only the deadline keeps
this name there, because under its old one it would be the record's own.
"""
FIRST_EXPIRES_AT_MS: Final = FIRST_NAMES[EXPIRES_AT_MS]

OF_LETTERS: Final = (
    DEAD_LETTER_NAMES - {EXPIRES_AT_MS, EPOCH} | set(ORIGINAL_NAMES.values()) | set(FIRST_NAMES.values())
)


def epoch_of(fields: Mapping[str, bytes | None]) -> int:
    """Return the epoch that wrote a record of a deliveries topic; 0 = not stated, so anybody may have written it."""
    stated = fields.get(EPOCH) or b""
    return int(stated) if stated.isdigit() and len(stated) < 19 else 0


def is_handed_out(name: str) -> bool:
    """Return whether a queue's deliveries include a message's header of that name (D4).

    Headers of lapse are left out, because they are instructions, or the delivery has its own. Headers about a death are
    included, because a consumer of a dead-letter topic needs them (C54).
    """
    return not name.startswith(PREFIX) or name in OF_LETTERS

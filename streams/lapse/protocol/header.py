"""Record header names that lapse reads and writes.

Every value is UTF-8 text except `EXPIRE_TIME`, which is binary by its own rule (L4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lapse.core.letter import LAPSE_ID as LAPSE_ID

# The lifetimes of L2 to L5 belong to the core, and are headers all the same: `X as X` hands them on.
from lapse.core.lifetime import CE_EXPIRYTIME as CE_EXPIRYTIME
from lapse.core.lifetime import ENQUEUE_AT_MS as ENQUEUE_AT_MS
from lapse.core.lifetime import EXPIRE_TIME as EXPIRE_TIME
from lapse.core.lifetime import EXPIRES_AT_MS as EXPIRES_AT_MS
from lapse.core.lifetime import TTL_MS as TTL_MS

# Likewise the delay of a message's retries (Q24), and what it has been through where a transfer takes it from (C73).
from lapse.core.retry_delay import RETRY_DELAY_MS as RETRY_DELAY_MS
from lapse.core.transfer_counts import TRANSFER_COUNTS as TRANSFER_COUNTS

# On a publish: the lifetimes of L2 to L5 are named in `lapse.core.lifetime`; then S2, X6, C29.
COMMAND: Final = "lapse-command"
MESSAGE_ID: Final = "lapse-message-id"
ORIGINAL_MESSAGE_ID: Final = "lapse-original-message-id"
"""The id that a producer gave; forwarding writes another one as `MESSAGE_ID` (C78)."""
REDRIVE_QUEUE: Final = "lapse-redrive-queue"
REDRIVEN_COUNT: Final = "lapse-redriven-count"
TRANSFER_FROM: Final = "lapse-transfer-from"
"""Which queue of which cluster has handed the message over: only there may it go back (C73)."""
TRANSFER: Final = "lapse-transfer"
"""`queue/id`: put there by a transfer to that queue, and not to be seen before it is confirmed (Q17)."""

# On a request, and `CORRELATION_ID` on its reply (Q27). They are the messages' own: every delivery bears them.
REPLY_TO: Final = "reply_to"
CORRELATION_ID: Final = "correlation_id"

ORIGINAL_NAMES: Final = {
    TTL_MS: "lapse-original-ttl-ms",
    EXPIRES_AT_MS: "lapse-original-expires-at-ms",
    EXPIRE_TIME: "lapse-original-expire-time",
    ENQUEUE_AT_MS: "lapse-original-enqueue-at-ms",
    CE_EXPIRYTIME: "lapse-original-ce_expirytime",
}
"""What a lifetime header is called on a dead letter, so that nothing expires again (D2)."""

# On a command, where users are configured (X4).
USER: Final = "lapse-user"
SIGNED_AT_MS: Final = "lapse-signed-at-ms"
SIGNATURE: Final = "lapse-signature"

# On every record of `lapse.<name>.deliveries` (D4).
KIND: Final = "lapse-kind"
"""`delivery`, `packed`, `reference`, `barrier`, `answer`, `epoch`.

Of a SOW topic also `group-begin`, `sow`, `group-end`, `publish`, `oof`.
"""
SUBSCRIPTION: Final = "lapse-subscription"
COMMAND_ID: Final = "lapse-command-id"
EPOCH: Final = "lapse-epoch"
"""Which epoch of the shard wrote the record; a reader drops records of an epoch below one it has seen.

On a dead letter, too: where two epochs wrote a message's fate, the higher one's counts.
"""
SHARDS: Final = "lapse-shards"
"""Of how many shards one says that its epoch begins."""
BOOKMARK: Final = "lapse-bookmark"
LEASE_UNTIL_MS: Final = "lapse-lease-until-ms"
DELIVERY_COUNT: Final = "lapse-delivery-count"
TIMESTAMP_MS: Final = "lapse-timestamp-ms"
LIFETIMES: Final = "lapse-lifetimes"
"""`ignored`, on deliveries with a deadline of a queue that does not act on lifetimes: it may have passed (L6)."""
LIFETIMES_IGNORED: Final = b"ignored"
OPERATION: Final = "lapse-operation"
UNWRITTEN: Final = "lapse-unwritten"
"""On a tombstone of the compacted topic: the update that expired came and went, and never stood there (S10)."""
ORDER_VALUE: Final = "lapse-order-value"
"""What `order_by` has of a record, as JSON; absent where that is NULL or cannot be compared (S5)."""

# On a dead letter: KIP-1191 verbatim, then ours (D2).
DLQ_TOPIC: Final = "__dlq.errors.topic"
DLQ_PARTITION: Final = "__dlq.errors.partition"
DLQ_OFFSET: Final = "__dlq.errors.offset"
DLQ_GROUP: Final = "__dlq.errors.group"
DLQ_DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
DLQ_MESSAGE: Final = "__dlq.errors.message"
REASONS: Final = "lapse-reasons"
CANCEL_COUNT: Final = "lapse-cancel-count"
UNCONFIRMED_TRANSFER: Final = "lapse-unconfirmed-transfer"
"""Id of the transfer that put the record there; it died before it was confirmed, so nobody redrives it (C84)."""
EXPIRED_AT_MS: Final = "lapse-expired-at-ms"
NULL_VALUE: Final = "lapse-null-value"
"""The message's value was null. A null letter without it has lost its payload, so nobody redrives that (C84)."""
RECORD_KEY: Final = "lapse-record-key"
"""The key of a SOW topic's record where its payload makes it, so that a redrive finds newer records of it (C84)."""

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
"""Headers that a dead letter sets: overwritten, never piled up (D2)."""

PREFIX: Final = "lapse-"
FIRST_NAMES: Final = {
    name: f"{PREFIX}first-{name.removeprefix('__dlq.errors.').removeprefix(PREFIX).replace('.', '-')}"
    for name in sorted(DEAD_LETTER_NAMES - {REDRIVEN_COUNT, EXPIRES_AT_MS})
}
"""What a dead letter's own headers are called on the letter that is written when it dies itself (C54).

A redrive of that letter gives them back their names: the record is the first letter again. The deadline is left out:
on a record that was redriven it would be the record's own.
"""

OF_LETTERS: Final = (
    DEAD_LETTER_NAMES - {EXPIRES_AT_MS, EPOCH} | set(ORIGINAL_NAMES.values()) | set(FIRST_NAMES.values())
)


def epoch_of(fields: Mapping[str, bytes | None]) -> int:
    """Which epoch wrote a record of a deliveries topic; 0 = it does not say, for anybody may have written it."""
    stated = fields.get(EPOCH) or b""
    return int(stated) if stated.isdigit() and len(stated) < 19 else 0


def is_handed_out(name: str) -> bool:
    """Whether a queue's deliveries bear a message's own header of that name (D4).

    lapse's own are left out: they are instructions, or the delivery states them itself. What a dead letter says of its
    death is passed on, for a consumer of a dead-letter topic works with it (C54).
    """
    return not name.startswith(PREFIX) or name in OF_LETTERS

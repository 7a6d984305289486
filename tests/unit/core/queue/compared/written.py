"""Records as publishers write them, from what a test says of them."""

from __future__ import annotations

import json

from unit.core.queue.expected.message import Published


def published(offset: int, letter: bool = False, **said) -> Published:
    """A record whose headers say what the keywords say; of a letter they say what was (C54)."""
    record = Published(offset=offset, **said)
    record.value = json.dumps(record.body).encode()
    names = ((record.ttl_ms, "ttl"), (record.expires_at_ms, "expires-at"), (record.enqueue_at_ms, "enqueue-at"))
    record.headers = [("trace", b"1")] if offset % 3 == 0 else []
    record.headers += [(f"lapse-{name}-ms", b"%d" % value) for value, name in names if value is not None]
    if record.broken:
        record.headers.append(("lapse-ttl-ms", b"soon"))
    if record.message_id:
        record.headers.append(("lapse-message-id", record.message_id))
    if record.retry is not None:
        record.headers.append(("lapse-retry-delay-ms", record.retry))
    if record.redriven_for:
        record.headers.append(("lapse-redrive-queue", record.redriven_for.encode()))
    if record.transferred:
        record.headers.append(("lapse-transfer", "/".join(record.transferred).encode()))
    if any(record.counts):
        record.headers.append(("lapse-transfer-counts", b"%d/%d" % record.counts))
    if letter:
        record.headers += [("lapse-id", b"risk/orders:0:1/0"), ("__dlq.errors.topic", b"orders")]
        if not record.redriven_for and not record.transferred:
            record.ttl_ms = record.expires_at_ms = record.enqueue_at_ms = record.retry = None
            record.broken, record.message_id = False, b""
    return record

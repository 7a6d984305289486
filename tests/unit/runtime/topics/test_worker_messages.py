"""What stands in the place of a message between workers, and is none."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.topics.worker_messages import WorkerMessages


@pytest.mark.feature("X7", "C65")
@pytest.mark.parametrize(
    "value",
    [
        None,
        b"[" * 5_000,
        b"[]",
        b"{}",
        b'{"kind": "who serves", "entity": %b}' % (b"[" * 1_000 + b"]" * 1_000),
        b'{"kind": "served", "entity": "a", "version": {}, "shards": [0]}',
        b'{"kind": "served", "entity": "a", "version": 1, "shards": 5}',
        b'{"kind": "live", "entity": "a", "question": []}',
    ],
)
def test_what_is_no_message_of_a_worker_is_reported_to_the_log(value: bytes | None, caplog: Any) -> None:
    services, record = SimpleNamespace(connection={}), SimpleNamespace(key=SHARD_MESSAGE_KEY, value=value, offset=7)
    messages = WorkerMessages("definitions.lapse", services, None, None)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        asyncio.run(messages._take([record]))
    assert "offset 7: no message of a worker" in caplog.text

"""The largest record that each topic must take, so that letters and deliveries fit (C27)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from lapse.runtime.kafka.output import MAX_BATCH_BYTES

DEFAULT_BYTES: Final = 1_048_588
"""Kafka's default for a topic without a limit of its own, bytes."""

ADDED_BYTES: Final = 64 << 10
"""By how much a dead letter or a delivery may exceed its message because of headers, bytes."""


def record_limits(
    limits: Mapping[str, int],
    existing: Collection[str],
    letters: Mapping[str, str | None],
    sources: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    """Return the largest record of each topic after `lapse apply`, bytes, as far as that is known.

    A queue may read a topic of letters that is created, or gets a higher limit, in the same run. Then the topics that
    are written for that queue need a higher limit as well.

    Args:
        limits: the limits of existing topics, bytes.
        existing: the topics that exist.
        letters: by entity, its dead-letter topic; None or empty if it has none.
        sources: by entity, the topics that it reads.
    """
    found = dict(limits)
    readers: dict[str, list[str]] = {}
    for name, topics in sources.items():
        for topic in topics:
            readers.setdefault(topic, []).append(name)
    waiting = deque(letters)
    for _ in range(2 * len(letters) ** 2):  # enough for every path without a cycle
        if not waiting:
            break
        name = waiting.popleft()
        written = letters[name]
        if not written:
            continue
        needed = max((found.get(one, DEFAULT_BYTES) for one in sources[name]), default=DEFAULT_BYTES) + ADDED_BYTES
        if found.get(written, 0 if written not in existing else needed) < needed:
            found[written] = max(2 * MAX_BATCH_BYTES, needed)
            waiting.extend(readers.get(written, ()))
    return found

"""Early beginning: a queue that is to begin at an instant that has not come (Q16)."""

from __future__ import annotations

from lapse.config.entity_config import QueueConfig


def early_beginning(queue: QueueConfig | None, begins_anew: bool, now_ms: int) -> str:
    """Return why a queue cannot begin where it is to begin, because that has not come; empty if nothing is wrong (Q16).

    Args:
        queue: the settings of the queue; None for a SOW topic, which has no such beginning.
        begins_anew: whether it is new, or begins elsewhere than before.
        now_ms: the present instant, ms since the epoch; the latest that it may be.
    """
    point = None if queue is None else queue.recovery_point
    if not begins_anew or not isinstance(point, int) or point <= now_ms:
        return ""
    return (
        f"recovery_point: {point} is {point - now_ms:,} ms in the future. The queue would begin at the end of its "
        'topics, and take in what arrives before that instant, too. Write "end", or an instant that has passed'
    )

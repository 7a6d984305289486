"""How long Kafka keeps the records of a topic, compared with the lifetimes of messages (C40)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from lapse.config import QueueConfig
from lapse.core.duration import in_words

_SET_ON_THE_TOPIC: Final = 1
"""Kafka's number for a setting that was made for this topic, and is not a default of the broker."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long Kafka keeps the records of a topic.

    Attributes:
        period_ms: the retention; −1 for ever.
        chosen: whether it was set for this topic.
        compacts: whether Kafka removes a record once a later one has its key.
        policy: the cleanup.policy, as Kafka returns it.
    """

    period_ms: int
    chosen: bool
    compacts: bool
    policy: str

    @classmethod
    def of_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Make it from a topic's settings, as the admin client returns them."""
        policy, period = settings["cleanup.policy"].value, settings["retention.ms"]
        deletes = "delete" in policy
        chosen = int(period.source) == _SET_ON_THE_TOPIC
        return cls(int(period.value) if deletes else -1, chosen, "compact" in policy, policy)

    def warning(self, topic: str, name: str, queue: QueueConfig) -> str:
        """Return a warning if Kafka may remove messages of a queue on this topic too early; empty if not."""
        where = f"queue {name}: topic {topic}"
        if self.compacts:
            return (
                f"{where} is compacted: Kafka removes a message once another one with its key follows. It then leaves "
                "the queue with the reason log_truncated. Set cleanup.policy = delete (C40)"
            )
        expiration = queue.expiration_settings().shortened_by(queue.topic_expirations.get(topic))
        lifetime_ms = expiration.default_ms if expiration.enabled else None
        if self.period_ms < 0 or (lifetime_ms is None and not self.chosen):
            return ""
        if lifetime_ms is not None and lifetime_ms <= self.period_ms:
            return ""
        lives = "until they are settled" if lifetime_ms is None else f"for {in_words(lifetime_ms)}"
        return (
            f"{where} keeps records for {in_words(self.period_ms)}, and messages may live {lives}: "
            "what Kafka removes earlier leaves the queue with the reason log_truncated. Raise the topic's "
            "retention.ms, or set a shorter expiration (C40)"
        )

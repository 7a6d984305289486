"""The settings of a queue shard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from lapse.core.lifetime import Expiration
from lapse.core.queue.arrival.trait import NO_TRAITS, TraitReader
from lapse.core.queue.delivery.retry import NO_RETRY, RetryRule
from lapse.core.queue.inquiry.view import Parse
from lapse.core.queue.modes import Fairness, Leasing, Semantics
from lapse.core.queue.rates.rate import Rate
from lapse.core.reason import QUEUE_DEAD_LETTER_REASONS, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings of a queue as its shards use them.

    Attributes:
        name: name of the queue.
        partition: number of the shard.
        semantics: at-least-once or at-most-once.
        fairness: which subscription gets the next message.
        leasing: who may settle a leased message.
        expiration: the queue's rule for lifetimes (L6, L7).
        topic_expirations_ms: by underlying topic, the topic's own lifetime, ms (L8).
        lease_ms: duration of a lease, ms (Q5).
        max_lease_ms: longest lease that a renewal may ask for, ms (C17).
        max_backlog: most unsettled deliveries that any subscription may have; None = no cap (Q3).
        max_deliveries: a message leaves after this many deliveries that ended unsettled; 0 = no limit (Q9).
        max_cancels: a message leaves when it was cancelled more often than this; 0 = no limit (Q9).
        retry: how long a returned message waits before its next delivery (Q24).
        heartbeat_timeout_ms: silence after which a subscription is lost, ms (Q5).
        dead_letter_topic: the topic for dead letters; empty = removed messages are dropped (D1).
        dead_letter_reasons: reasons that cause a letter (C22, C25).
        target_depth: most messages that are active at once; None = no limit (Q13).
        dedup_window_ms: a message whose id was seen within this time is dropped, ms; 0 = none is (X6).
        idle_ms: a queue that was not used for this time deletes itself, ms; 0 = never (Q18).
        configured: a fingerprint of the whole configuration; a change of it counts as use (Q18).
        shards: how many shards the queue has.
        waits: whether this shard does not read yet, because older shards still have messages (C81).
        rate: most deliveries in any window; None = no limit (Q25).
        group_rate: most deliveries of each group in any window; None = no limit (Q25).
        group_limit: most messages of a group that are leased at once; 1 also keeps the group in order (Q20, Q25).
        group_weights: by group value as text, the group's weight; others have 1 (Q25).
        traits: computes priority, barrier and group of messages (Q11, Q12, Q20).
        parse: parses payloads for expressions.
        value_format: the format of payloads, for people and for other deployments.
    """

    name: str
    partition: int = 0
    semantics: Semantics = Semantics.AT_LEAST_ONCE
    fairness: Fairness = Fairness.PROPORTIONAL
    leasing: Leasing = Leasing.SUBLET
    expiration: Expiration = Expiration()
    topic_expirations_ms: Mapping[str, int] = field(default_factory=dict)
    lease_ms: int = 30_000
    max_lease_ms: int = 30_000
    max_backlog: int | None = None
    max_deliveries: int = 0
    max_cancels: int = 0
    retry: RetryRule = NO_RETRY
    heartbeat_timeout_ms: int = 10_000
    dead_letter_topic: str = ""
    dead_letter_reasons: frozenset[Reason] = QUEUE_DEAD_LETTER_REASONS
    target_depth: int | None = None
    dedup_window_ms: int = 120_000
    idle_ms: int = 0
    configured: str = ""
    shards: int = 1
    waits: bool = False
    rate: Rate | None = None
    group_rate: Rate | None = None
    group_limit: int = 1
    group_weights: Mapping[str, int] = field(default_factory=dict)
    traits: TraitReader = NO_TRAITS
    parse: Parse = json.loads
    value_format: str = "json"

    def expiration_of(self, topic: str) -> Expiration:
        """Return the rule for lifetimes of an underlying topic (L8)."""
        own_ms = self.topic_expirations_ms.get(topic)
        return self.expiration if own_ms is None else self.expiration.shortened_by(own_ms)

    def writes_letter(self, reasons: tuple[Reason, ...]) -> bool:
        """Return whether a message that leaves for these reasons gets a dead letter (D1, C22)."""
        return bool(self.dead_letter_topic) and not self.dead_letter_reasons.isdisjoint(reasons)

"""Warns of settings that have no effect beside others, for `lapse check` and for a worker's start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lapse.config import Config, QueueConfig, SowConfig
from lapse.core.queue.modes import Semantics
from lapse.core.reason import Reason

_OF_LEASES: Final = ("max_deliveries", "max_cancels", "retry", "leasing", "max_lease_period")
"""Settings that count or limit leases."""


def warnings(config: Config) -> list[str]:
    """Return warnings of settings without effect, each with what to do."""
    found: list[str] = []
    for name, queue in config.queue.items():
        found += (f"queue {name}: {advice}" for advice in (*_of_leases(queue), *_of_queue(queue)))
        found += (f"queue {name}: {advice}" for advice in _of_topics(queue, config))
    entities: list[tuple[str, QueueConfig | SowConfig]] = [*config.queue.items(), *config.sow.items()]
    for name, entity in entities:
        found += (f"{name}: {advice}" for advice in _of_entity(entity))
    found += _of_topic_tables(config)
    return found


def _of_leases(queue: QueueConfig) -> Iterator[str]:
    """Warn of limits of deliveries and cancels, and of retries, that have no effect."""
    if queue.semantics is Semantics.AT_MOST_ONCE:
        stated = [key for key in _OF_LEASES if key in queue.model_fields_set and getattr(queue, key)]
        if stated:
            yield (
                f'{", ".join(stated)}: without effect with semantics = "at-most-once", where a '
                "message leaves as it is sent and is never leased. Take it out, or choose at-least-once (Q4)"
            )
        return
    if queue.max_deliveries == 1 and queue.retry is not None:
        yield (
            "retry: without effect with max_deliveries = 1: a message leaves after its first delivery, so none waits "
            "for a second one. Raise max_deliveries, or take retry out (Q24)"
        )
    if 0 < queue.max_deliveries <= queue.max_cancels:
        yield (
            f"max_cancels: without effect: a message leaves after {queue.max_deliveries} deliveries, so it is "
            f"cancelled {queue.max_deliveries} times at the most, never more than {queue.max_cancels}. Lower it (Q9)"
        )


def _of_queue(queue: QueueConfig) -> Iterator[str]:
    if queue.state == "memory" and "state_memory" in queue.model_fields_set:
        yield 'state_memory: without effect unless state = "disk". Take it out, or set that'
    if queue.max_per_subscription_backlog == 0:
        effect = "nobody gets any message" + (" but barriers" if queue.barrier is not None else "")
        yield f"max_per_subscription_backlog = 0: {effect}. Raise it; `lapse queue pause` holds deliveries back (Q3)"


def _of_topics(queue: QueueConfig, config: Config) -> Iterator[str]:
    """Warn of a queue's lifetimes for topics; those of `[topic.<name>]` may be meant for another queue."""
    own = [
        topic
        for topic, lifetime_ms in queue.topic_expirations.items()
        if topic not in config.topic or config.topic[topic].expiration != lifetime_ms
    ]
    if own and queue.expiration == "disabled":
        yield (
            'topic_expirations: without effect with expiration = "disabled". Set expiration to "enabled" or a '
            "duration, or take it out (C10)"
        )


def _of_topic_tables(config: Config) -> Iterator[str]:
    """Warn of lifetimes of topics that no queue obeys."""
    for topic in config.topic:
        readers = [name for name in config.readers(topic) if name in config.queue]
        if readers and all(config.queue[name].expiration == "disabled" for name in readers):
            yield (
                f"topic {topic}: expiration: without effect: no queue that reads it acts on lifetimes. Set expiration "
                f'of {", ".join(readers)} to "enabled" or a duration, or take it out (C10)'
            )


def _of_entity(entity: QueueConfig | SowConfig) -> Iterator[str]:
    """Warn of settings that queues and SOW topics have in common."""
    stated = entity.model_fields_set
    if entity.on_expire is None and "on_expire_timeout" in stated:
        yield "on_expire_timeout: without effect without on_expire. Take it out, or set that (L15)"
    if entity.dead_letter is False and entity.dead_letter_reasons:
        yield "dead_letter_reasons: without effect with dead_letter = false. Take it out (D1)"
    if "expiration_model" in stated:
        if entity.expiration == "disabled":
            yield 'expiration_model: without effect with expiration = "disabled". Take it out (L7)'
        elif entity.expiration == "enabled" and not getattr(entity, "topic_expirations", None):
            yield (
                'expiration_model: without effect with expiration = "enabled", which states no duration that could be '
                "overridden. Set expiration to a duration, or take it out (L7)"
            )
    impossible = [reason.value for reason in entity.dead_letter_reasons or () if _never(entity, reason)]
    if impossible and entity.dead_letter is not False:
        yield (
            f"dead_letter_reasons: nothing leaves for {', '.join(impossible)} with these settings. Take it out, or set "
            "what takes messages out for that reason (L14)"
        )


def _never(entity: QueueConfig | SowConfig, reason: Reason) -> bool:
    """Return whether no message or record can leave for a reason."""
    match reason:
        case Reason.TIME_LIMIT:
            return entity.expiration == "disabled"
        case Reason.AUTO_DELETED:
            return entity.auto_delete_on_idle is None
        case Reason.MAX_DELIVERIES | Reason.MAX_CANCELS:
            if not isinstance(entity, QueueConfig) or entity.semantics is Semantics.AT_MOST_ONCE:
                return True
            return not (entity.max_deliveries if reason is Reason.MAX_DELIVERIES else entity.max_cancels)
    return False

"""What `lapse check` warns of although it works as configured."""

from sys import getsizeof
from typing import Any

import pytest

from lapse.config.document import loads
from lapse.runtime.topics.advice import warnings
from lapse.runtime.topics.topology import Topology


def advice_for(text: str, *others: str) -> list[str]:
    """The warnings on a cluster that has what the configuration wants, and some topics more."""
    config = loads(text)
    existing: dict[str, Any] = {wanted.name: wanted.partitions for wanted in Topology(config, {}).wanted()}
    return warnings(Topology(config, {**existing, **dict.fromkeys(others, 1)}))


@pytest.mark.feature("Q5", "L15", "X7")
@pytest.mark.parametrize(
    ("table", "warned_of"),
    [
        ('[queue.q]\nlease_period = "99ms"', ["q: lease_period: 99 ms"]),
        ('[queue.q]\nlease_period = "100ms"', []),
        ('[queue.q]\nlease_period = "1ms"\nsemantics = "at-most-once"', []),
        ('[queue.q]\nretention = "9m"', ["q: retention: what Kafka removes after 9m"]),
        ('[sow.s]\nretention = "1ms"', ["s: retention: what Kafka removes after 1ms"]),
        ('[queue.q]\nretention = "10m"', []),
        ('[queue.q]\non_expire = "json:dumps"\non_expire_timeout = "5ms"', ["q: on_expire_timeout: on a busy"]),
        ('[queue.q]\non_expire = "json:dumps"\non_expire_timeout = "100ms"', []),
    ],
)
def test_periods_that_are_over_before_anything_can_happen_are_warned_of(table: str, warned_of: list[str]) -> None:
    found = advice_for(table)
    assert len(found) == len(warned_of), found
    assert all(one.startswith(start) for one, start in zip(found, warned_of, strict=True)), found


@pytest.mark.feature("L10", "X7")
@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ('[queue.q]\nexpiration = "99ms"', ["q: expiration: 99 ms"]),
        ('[queue.q]\nexpiration = "100ms"', []),
        ('[sow.s]\nexpiration = "5ms"', ["s: expiration: 5 ms"]),
        ('[queue.q]\nexpiration = "enabled"\ntopic_expirations = { q = "7ms" }', ["q: topic_expirations.q: 7 ms"]),
        ('[queue.q]\nexpiration = "1h"\n[topic.q]\nexpiration = "8ms"', ["q: topic_expirations.q: 8 ms"]),
    ],
)
def test_lifetimes_that_no_message_survives_are_warned_of(table: str, keys: list[str]) -> None:
    found = advice_for(table)
    assert len(found) == len(keys)
    assert all(one.startswith(key) for one, key in zip(found, keys, strict=True))


@pytest.mark.feature("Q2", "X7")
def test_a_topic_of_the_queues_name_that_nobody_reads_is_warned_of() -> None:
    elsewhere = '[queue.orders]\ntopics = ["orders-web"]\n'
    assert advice_for(elsewhere) == []
    (warning,) = advice_for(elsewhere, "orders")
    assert "there is a topic orders, too, and no entity reads it" in warning
    assert "Producers write to orders-web" in warning
    assert advice_for(elsewhere + '[sow.mirror]\ntopic = "orders"', "orders") == []
    assert advice_for("[queue.orders]", "orders") == []


@pytest.mark.feature("Q13", "X7")
def test_memory_of_acknowledgments_that_come_ahead_is_warned_of() -> None:
    (warning,) = advice_for("[queue.deep]\ntarget_queue_depth = 10\n[queue.plain]\n")
    assert warning.startswith("queue deep: target_queue_depth: each message beyond it that somebody acknowledges")
    assert "A million take 125 MB" in warning
    assert advice_for('[queue.deep]\ntarget_queue_depth = 10\nsemantics = "at-most-once"\n') == []
    names = {(7, 10_000_000 + offset) for offset in range(100_000)}
    size = getsizeof(names) + sum(getsizeof(one) + getsizeof(one[1]) for one in names)
    assert 100 < size / len(names) < 150, "what the warning says of their size is true"


IDLE = """
[queue.once]
semantics = "at-most-once"
retry = { delay = "1s" }
max_deliveries = 3
max_cancels = 1
leasing = "strict"
lease_period = "1m"
[queue.once_only]
semantics = "at-most-once"
dead_letter_reasons = ["max_deliveries"]
[queue.first]
max_deliveries = 1
max_per_subscription_backlog = 1
retry = { delay = "1s" }
[queue.cancels]
max_deliveries = 3
max_per_subscription_backlog = 1
max_cancels = 3
[queue.nobody]
max_per_subscription_backlog = 0
[queue.bells]
max_per_subscription_backlog = 0
ordering = "total"
barrier = "TRUE"
[queue.of_topics]
topic_expirations = { of_topics = "1m" }
[topic.read]
expiration = "1m"
[queue.read]
[queue.model]
expiration = "enabled"
expiration_model = "override"
[queue.letters]
dead_letter_reasons = ["time_limit", "max_cancels", "auto_deleted", "purged"]
[sow.prices]
expiration = "1h"
dead_letter_reasons = ["time_limit", "max_deliveries"]
"""

WARNED_OF = [
    "queue once: max_deliveries, max_cancels, retry, leasing: without effect with semantics",
    "queue first: retry: without effect with max_deliveries = 1",
    "queue cancels: max_cancels: without effect: a message leaves after 3 deliveries",
    "queue nobody: max_per_subscription_backlog = 0: nobody gets any message.",
    "queue bells: max_per_subscription_backlog = 0: nobody gets any message but barriers.",
    "queue of_topics: topic_expirations: without effect",
    "once_only: dead_letter_reasons: nothing leaves for max_deliveries",
    'model: expiration_model: without effect with expiration = "enabled"',
    "letters: dead_letter_reasons: nothing leaves for time_limit, max_cancels, auto_deleted with",
    "prices: dead_letter_reasons: nothing leaves for max_deliveries",
    "topic read: expiration: without effect: no queue that reads it acts on lifetimes. Set expiration of read to",
]
"""How the warnings begin."""


@pytest.mark.feature("X7", "Q4", "Q9", "Q24", "L7", "C10")
def test_settings_that_cannot_act_are_warned_of() -> None:
    found = advice_for(IDLE)
    assert len(found) == len(WARNED_OF), found
    assert all(one.startswith(start) for one, start in zip(found, WARNED_OF, strict=True)), found


ACTS = """
[queue.tried]
max_deliveries = 3
max_per_subscription_backlog = 1
max_cancels = 2
retry = { delay = "1s" }
dead_letter_reasons = ["max_deliveries", "max_cancels", "time_limit"]
expiration = "enabled"
expiration_model = "ceiling"
topic_expirations = { tried = "1m" }
[topic.read]
expiration = "1m"
[queue.read]
[queue.also]
topics = ["read"]
expiration = "enabled"
"""


@pytest.mark.feature("X7")
def test_settings_that_act_are_not_warned_of() -> None:
    assert advice_for(ACTS) == []


GROUPED = """
[security]
worker_key_file = "worker.key"
[users.alice]
key_file = "alice.key"
[users.alice.entitlements.orders]
read = true
filter = "/desk = 'A'"
[users.bob]
key_file = "bob.key"
[users.bob.entitlements.orders]
read = true
[queue.orders]
group_by = "/g"
"""


@pytest.mark.feature("C87", "X4")
def test_a_group_whose_first_message_a_filter_may_hide_is_warned_of() -> None:
    (warning,) = advice_for(GROUPED)
    assert warning.startswith("queue orders: group_by, and alice sees only what matches a filter: ")
    assert "even if no subscription that is there matches it" in warning
    assert advice_for(GROUPED + "group_limit = 2\n") == [], "no message holds its group back then (C70)"
    assert advice_for(GROUPED.replace("filter = \"/desk = 'A'\"\n", "")) == []

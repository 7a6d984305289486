"""Settings of a queue that do not fit together are told with line and key; patterns leave others' topics alone."""

import re

import pytest

from lapse.config import ConfigError
from lapse.config.document import loads
from lapse.config.entity_config import QueueConfig
from lapse.core.queue.rates.rate import Rate


@pytest.mark.feature("Q7", "Q11", "Q12", "Q13", "Q17", "C17", "C72", "Q2", "X7")
@pytest.mark.parametrize(
    ("settings", "line", "key", "words"),
    [
        ('semantics = "at-most-once"\nfairness = "proportional"', 4, "fairness", 'only "round-robin" is'),
        ('fairness = "fast"\nsemantics = "at-most-once"', 3, "fairness", '"fast" is not possible'),
        ('barrier = "/b = 1"', 3, "barrier", 'requires ordering = "total"'),
        ('partitions = 2\npriority = "/p"', 4, "priority", 'over 2 partitions requires ordering = "total"'),
        ('priority = "/p *"', 3, "priority", "the expression ends too early"),
        ('target_queue_depth = 9\npriority = "/p"', 3, "target_queue_depth", "together with priority or barrier"),
        (
            'barrier = "/b"\nordering = "total"\ntarget_queue_depth = 9',
            5,
            "target_queue_depth",
            "together with priority or barrier",
        ),
        ("group_limit = 2", 3, "group_limit", "needs group_by"),
        ('group_by = "/g"\ngroup_limit = 0', 4, "group_limit", "expected 1 or more, not 0"),
        ('group_by = "/g"\ngroup_limit = 2.5', 4, "group_limit", "expected a whole number"),
        (
            'group_by = "/g"\ngroup_limit = 2\ntarget_queue_depth = 9',
            4,
            "group_limit",
            "above 1 is not possible together with target_queue_depth",
        ),
        ("group_weight = { gold = 4 }", 3, "group_weight", "needs group_by"),
        ('group_by = "/g"\ngroup_weight = { gold = 0 }', 4, "group_weight.gold", "expected 1 or more, not 0"),
        ('group_by = "/g"\ngroup_weight = { gold = 0.5 }', 4, "group_weight.gold", "expected a whole number"),
        ('group_by = "/g"\ngroup_weight = 4', 4, "group_weight", "expected a table"),
        (
            'group_by = "/g"\ngroup_weight = { gold = 4 }\ntarget_queue_depth = 9',
            4,
            "group_weight",
            "is not possible together with target_queue_depth",
        ),
        ('rate = "0/1s"', 3, "rate", "pause the queue"),
        ('rate = "5"', 3, "rate", 'expected a rate such as "100/1s"'),
        ('rate = "5/1y"', 3, "rate", "expected a duration"),
        ('rate = "5/0s"', 3, "rate", "has to be longer than 0"),
        ('rate = { messages = 1.5, per = "1s" }', 3, "rate", "expected a whole number, not 1.5"),
        ("rate = { messages = 5 }", 3, "rate", 'expected a rate such as "100/1s"'),
        ('partitions = 2\nrate = "5/1s"', 4, "rate", 'over 2 partitions requires ordering = "total"'),
        ('rate = "5/1s"\ntarget_queue_depth = 9', 3, "rate", "not possible together with target_queue_depth"),
        ('group_rate = "5/1s"', 3, "group_rate", "needs group_by"),
        ('group_by = "/g"\ngroup_rate = "0/1s"', 4, "group_rate", "pause the queue"),
        ('lease_period = "30s"\nmax_lease_period = "10s"', 4, "max_lease_period", "shorter than lease_period"),
        ('topics = ["a", "b", "a"]', 3, "topics", "a is named twice"),
        ('expiration_model = "ceiling"', 3, "expiration_model", '"ceiling" needs a duration that is the maximum'),
        ('expiration = "enabled"\nexpiration_model = "ceiling"', 4, "expiration_model", "set expiration to one"),
        ('dead_letter_reasons = ["purged", "purged"]', 3, "dead_letter_reasons", "purged is named twice"),
        ('topic_pattern = "a.*"', 3, "topic_pattern", "needs default_publish_target"),
    ],
)
def test_what_does_not_fit_is_reported_with_line_and_key(settings: str, line: int, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(f"# first line\n[queue.q]\n{settings}\n")
    text = str(caught.value)
    assert text.startswith(f"lapse.toml:{line}: queue.q.{key}: ")
    assert words in text


@pytest.mark.feature("L7", "L8", "L9")
@pytest.mark.parametrize("beside", ['expiration = "1h"', 'expiration = "disabled"', 'topic_expirations = { q = "1h" }'])
def test_a_ceiling_needs_a_duration_unless_lifetimes_are_switched_off(beside: str) -> None:
    """Who switches expiration off for an hour need not take the model out."""
    assert loads(f'[queue.q]\nexpiration_model = "ceiling"\n{beside}').queue["q"].expiration_model == "ceiling"


@pytest.mark.feature("C28", "Q2")
@pytest.mark.parametrize(
    ("pattern", "reads", "passes"),
    [
        (".*", ["orders", "x-dlq.y"], ["lapse.orders.commands", "dlq.orders", "lapse-orders-changelog", "__offsets"]),
        (".*", [], ["app-__assignor-__leader", "lapse.events.orders"]),
        ("dlq\\..*|orders", ["dlq.orders", "orders"], ["lapse.orders.commands"]),
        ("dlq[.]orders", ["dlq.orders"], ["dlq.other"]),
        (".*|old-dlq", ["orders", "old-dlq"], ["dlq.orders"]),
        ("(?i)orders.*", ["ORDERS-1", "orders"], ["invoices"]),
        (".*-changelog", ["my-changelog"], ["lapse.x-changelog"]),
    ],
)
def test_a_pattern_matches_others_topics_only(pattern: str, reads: list[str], passes: list[str]) -> None:
    queue = QueueConfig(topic_pattern=pattern, topics=("given",))
    assert [topic for topic in [*reads, *passes] if queue.reads(topic)] == reads
    assert bool(re.compile(queue.pattern() or "").flags & re.IGNORECASE) is ("(?i)" in pattern)


@pytest.mark.feature("Q25", "C71", "C72")
@pytest.mark.parametrize(
    ("said", "rate"),
    [
        ('"100/1s"', Rate(100, 1_000)),
        ('"100/s"', Rate(100, 1_000)),
        ('" 6000 / 10m "', Rate(6_000, 600_000)),
        ('{ messages = 3, per = "1h" }', Rate(3, 3_600_000)),
    ],
)
def test_a_rate_is_a_number_of_messages_in_a_window(said: str, rate: Rate) -> None:
    queue = loads(
        f'[queue.q]\npartitions = 2\nordering = "total"\ngroup_by = "/g"\nrate = {said}\ngroup_rate = {said}\n'
    )
    settings = queue.queue["q"].settings("q", 0)
    assert (settings.rate, settings.group_rate) == (rate, rate)

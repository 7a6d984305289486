"""Settings of a queue that do not fit together are told with line and key; patterns leave others' topics alone."""

import re

import pytest

from lapse.config import ConfigError
from lapse.config.document import loads
from lapse.config.entity import QueueConfig


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
        ('lease_period = "30s"\nmax_lease_period = "10s"', 4, "max_lease_period", "shorter than lease_period"),
        ('topics = ["a", "b", "a"]', 3, "topics", "a is named twice"),
        ('topic_pattern = "a.*"', 3, "topic_pattern", "needs default_publish_target"),
    ],
)
def test_what_does_not_fit_is_told_with_line_and_key(settings: str, line: int, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(f"# first line\n[queue.q]\n{settings}\n")
    text = str(caught.value)
    assert text.startswith(f"lapse.toml:{line}: queue.q.{key}: ")
    assert words in text


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

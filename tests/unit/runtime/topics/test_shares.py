"""Shares of a queue over topics that have more partitions than its configuration says (C32, C72)."""

import pytest

from lapse.config.document import loads
from lapse.runtime.topics.advice import warnings
from lapse.runtime.topics.topology import Topology


def over(partitions: int, settings: str) -> Topology:
    """The topology of a queue whose topic has so many partitions."""
    config = loads(f"[queue.jobs]\n{settings}\n")
    return Topology(config, {"jobs": partitions})


@pytest.mark.feature("Q25", "C72")
def test_a_rate_over_a_topic_of_several_partitions_is_refused() -> None:
    (advice,) = [one for one in over(3, 'rate = "5/1s"').differences() if "rate" in one.what]
    assert 'queue.jobs.rate: a rate over 3 partitions requires ordering = "total"' in advice.what
    assert advice.bars == ("jobs",)
    for partitions, settings in ((1, 'rate = "5/1s"'), (3, 'rate = "5/1s"\nordering = "total"')):
        assert not [one for one in over(partitions, settings).differences() if "rate" in one.what]


@pytest.mark.feature("Q25", "C32", "C72")
def test_what_counts_for_groups_in_each_partition_is_warned_about() -> None:
    (warning,) = warnings(over(2, 'group_by = "/tenant"\ngroup_rate = "5/1s"'))
    assert "group_by keeps a group in order, and group_rate counts, within each of 2 partitions only" in warning
    (warning,) = warnings(over(2, 'group_by = "/tenant"\ngroup_limit = 3\ngroup_weight = { gold = 2 }'))
    assert "group_by and group_limit and group_weight count within each of 2 partitions only" in warning
    assert not warnings(over(1, 'group_by = "/tenant"\ngroup_rate = "5/1s"'))

"""Names of missing topics that cannot be created (X7, C81).

Kafka does not take a name beside another if '.' and '_' are all that differs, because they are the same in its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from lapse.runtime.topics.difference import Difference


def with_clashes(
    differences: Iterable[Difference], existing: Iterable[str], exists: Callable[[str], bool]
) -> list[Difference]:
    """Return differences in which topics that cannot be created bar their new entities.

    Otherwise the other topics of such an entity would be created, and it would be half made. One that exists is served
    without the topic.

    Args:
        differences: how the cluster differs from what is needed.
        existing: the names of the topics on the cluster.
        exists: returns whether an entity exists.
    """
    taken = {name.replace(".", "_"): name for name in existing}
    found: list[Difference] = []
    for one in differences:
        if one.create is not None:
            other = taken.setdefault(one.topic.replace(".", "_"), one.topic)
            if other != one.topic and not exists(one.create.entity):
                what = f"{one.what}; Kafka does not create it beside {other}: '.' and '_' are the same in its metrics"
                one = replace(one, what=f"{what}. Choose another name", create=None, bars=(one.create.entity,))
        found.append(one)
    return found

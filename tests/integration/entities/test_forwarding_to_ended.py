"""Forwarding to a queue that is deleted, and created again, while workers run (Q21, Q23)."""

import pytest

from support.kafka.log import until
from support.processes.deployment import Deploy


@pytest.mark.feature("Q21", "Q23", "C38", "C81")
def test_nothing_is_forwarded_for_a_deleted_queue_and_what_waited_goes_to_its_successor(deploy: Deploy) -> None:
    """The target was the queue, not the topic to which it published. A worker that starts later does the same."""
    here = deploy({"front": {"forward_to": "behind{}"}, "behind": {"topics": ["inner{}"]}}, definitions="topic").apply()
    worker = here.worker().wait_for_shards(2)
    behind, inner = here.name("behind"), here.name("inner")
    here.write("front", "first")
    until(lambda: here.depth("behind")["depth"] == 1, "it is forwarded")
    assert here.lapse("queue", "delete", behind, "--force", "--yes").returncode == 0
    until(lambda: f"topic {behind} (forwarded messages) is missing" in worker.text, "the target is named", 20)
    here.write("front", "second")
    until(lambda: here.depth("front")["available"] == 1, "it stays")
    assert here.tail(inner).drain()[1:] == []
    worker.stop()
    second = here.worker().wait_for_shards(1)
    until(lambda: here.depth("front")["available"] == 1, "it stays after a restart")
    assert here.tail(inner).drain()[1:] == []
    created = here.lapse("queue", "create", behind, f'topics=["{inner}"]')
    assert created.returncode == 0, created.stderr
    until(
        lambda: here.depth("behind")["depth"] == 2,
        "it is forwarded to the new queue, which begins at the beginning",
        20,
    )
    assert [one.value() for one in here.tail(inner).wait(2)] == [b"first", b"second"]
    assert second.running

"""For how long a publisher believes where the messages of a queue go (Q2)."""

from types import SimpleNamespace

import pytest

from lapse.testing import Lapse
from lapse_client.publisher import publish_targets
from lapse_client.publisher.publish_targets import PublishTargets


@pytest.mark.feature("Q2", "Q23")
def test_a_target_is_looked_up_again_however_many_other_names_are(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further name prolonged what was known of all others, so a publisher of many names never looked again."""
    lapse.queue("orders", topics=["a", "b"], default_publish_target="a")
    now_s = [0.0]
    monkeypatch.setattr(publish_targets, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    targets = PublishTargets(lapse.connection, 5)
    assert targets.topic_of("orders") == "a"
    with lapse.admin() as admin:
        admin.alter_queue("orders", default_publish_target="b")
    found: list[str] = []
    for other in ("a", "b", "dlq.orders"):
        now_s[0] += 25
        targets.topic_of(other)
        found.append(targets.topic_of("orders"))
    assert found == ["a", "a", "b"]

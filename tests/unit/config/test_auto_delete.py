"""`auto_delete_on_idle` in `lapse.toml` (Q18, X7)."""

import pytest

from lapse.config import ConfigError
from lapse.config.document import loads
from lapse.runtime.sow.settings import settings


@pytest.mark.feature("Q18", "X7")
def test_less_than_five_minutes_is_refused_with_line_and_key() -> None:
    for given in ("299s", "1s", "0s"):
        with pytest.raises(ConfigError, match=r"lapse.toml:3: queue.q.auto_delete_on_idle: .* 5 minutes"):
            loads(f'[queue.q]\nlease_period = "1s"\nauto_delete_on_idle = "{given}"\n')


@pytest.mark.feature("Q18")
def test_five_minutes_are_enough_and_every_setting_has_a_mark_of_its_own() -> None:
    config = loads('[queue.a]\nauto_delete_on_idle = "5m"\n[queue.b]\nauto_delete_on_idle = "6m"\n[queue.c]\n')
    shards = {name: queue.settings(name, 0) for name, queue in config.queue.items()}
    assert {name: one.idle_ms for name, one in shards.items()} == {"a": 300_000, "b": 360_000, "c": 0}
    assert len({one.configured for one in shards.values()}) == 3


@pytest.mark.feature("Q18", "Q23", "X7")
def test_a_sow_topic_has_the_same_idle_time() -> None:
    with pytest.raises(ConfigError, match=r"lapse.toml:2: sow.s.auto_delete_on_idle: .* 5 minutes"):
        loads('[sow.s]\nauto_delete_on_idle = "299s"\n')
    config = loads('[sow.a]\nauto_delete_on_idle = "5m"\n[sow.b]\nauto_delete_on_idle = "6m"\n[sow.c]\n')
    shards = {name: settings(one, name, 0, 1, 1 << 20) for name, one in config.sow.items()}
    assert {name: one.idle_ms for name, one in shards.items()} == {"a": 300_000, "b": 360_000, "c": 0}
    assert len({one.configured for one in shards.values()}) == 3

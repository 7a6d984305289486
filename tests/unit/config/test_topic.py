"""`[topic.<name>]`: a lifetime that is stated once counts in every queue that reads the topic."""

from pathlib import Path

import pytest

from lapse.config import document
from lapse.config.definition import in_file

TEXT = """
[topic.fax]
expiration = "2d"
[queue.fax]
[queue.both]
topics = ["web", "fax"]
topic_expirations = { web = "1h" }
[queue.own]
topics = ["fax"]
topic_expirations = { fax = "1m" }
[queue.some]
topic_pattern = "f.*"
default_publish_target = "fax"
[queue.web]
[sow.s]
topic = "fax"
"""

EXPECTED = {
    "fax": {"fax": 172_800_000},
    "both": {"web": 3_600_000, "fax": 172_800_000},
    "own": {"fax": 60_000},
    "some": {"fax": 172_800_000},
    "web": {},
}


@pytest.mark.feature("L8")
def test_every_queue_that_reads_the_topic_has_its_lifetime() -> None:
    config = document.loads(TEXT)
    assert {name: queue.topic_expirations for name, queue in config.queue.items()} == EXPECTED


@pytest.mark.feature("L8", "Q23")
def test_definitions_carry_the_lifetime_along(tmp_path: Path) -> None:
    path = tmp_path / "lapse.toml"
    path.write_text(TEXT)
    found = in_file(path)
    assert {
        name: one.config(tmp_path).topic_expirations for name, one in found.items() if one.kind == "queue"
    } == EXPECTED


@pytest.mark.feature("L8", "X7")
@pytest.mark.parametrize("queue", ['topics = "fax"', 'topic_pattern = "("', "topic_expirations = 1", "topics = 1"])
def test_what_cannot_be_read_is_reported_as_without_it(queue: str) -> None:
    text = f"[queue.q]\n{queue}\n"
    with pytest.raises(document.ConfigError) as plain:
        document.loads(text)
    with pytest.raises(document.ConfigError) as with_topic:
        document.loads(text + '[topic.fax]\nexpiration = "1s"\n')
    assert str(plain.value) in str(with_topic.value)

"""Mistakes in `lapse.toml` are named by file, line and key, with what to write instead (X7)."""

from pathlib import Path

import pytest

from lapse.config import ConfigError, load
from lapse.config.document import loads

EXPECTED = 'expected "disabled", "enabled" or a duration such as "45s", not'
LONG = "u" * 64
QUEUE = "[queue.q]\n"
SOW = "[sow.s]\n"


@pytest.mark.feature("X7", "L6")
@pytest.mark.parametrize(
    ("text", "text_of_it"),
    [
        (QUEUE + 'expiration = "45"', f"2: queue.q.expiration: {EXPECTED} '45'"),
        (QUEUE + "expiration = 45", f"2: queue.q.expiration: {EXPECTED} 45"),
        (QUEUE + "expiration = true", f"2: queue.q.expiration: {EXPECTED} True"),
        (QUEUE + 'expiration = "-45s"', f"2: queue.q.expiration: {EXPECTED} '-45s'"),
        (QUEUE + 'expiration = "1.5s"', f"2: queue.q.expiration: {EXPECTED} '1.5s'"),
        (QUEUE + 'expiration = "2w"', f"2: queue.q.expiration: {EXPECTED} '2w'"),
        (QUEUE + 'expiration = "٤s"', f"2: queue.q.expiration: {EXPECTED} '٤s'"),
        (QUEUE + 'expiration = "0s"', "2: queue.q.expiration: '0s' would remove every message as it comes; write"),
        (QUEUE + 'expiration = "106751991168d"', "2: queue.q.expiration: '106751991168d' is longer than 3650000d"),
        (QUEUE + "lease_period = 5", '2: queue.q.lease_period: 5 has no unit; write "5ms" or "5s"'),
        (QUEUE + 'lease_period = "0s"', "2: queue.q.lease_period: '0s': has to be longer than 0"),
        (QUEUE + 'heartbeat_timeout = "99ms"', '2: queue.q.heartbeat_timeout: has to be "100ms" or more: clients send'),
        (SOW + 'heartbeat_timeout = "1ms"', '2: sow.s.heartbeat_timeout: has to be "100ms" or more: clients send'),
        (SOW + 'heartbeat_timeout = "0s"', "2: sow.s.heartbeat_timeout: '0s': has to be longer than 0"),
        (QUEUE + 'topic_expirations = { q = "0s" }', "2: queue.q.topic_expirations.q: '0s': has to be longer than 0"),
    ],
)
def test_durations(text: str, text_of_it: str) -> None:
    assert refused(text).startswith(f"lapse.toml:{text_of_it}")


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOW + 'partitions = "2"', "2: sow.s.partitions: expected a whole number, not '2'"),
        (SOW + "partitions = true", "2: sow.s.partitions: expected a whole number, not True"),
        (SOW + "partitions = 0", "2: sow.s.partitions: expected 1 or more, not 0"),
        (SOW + "dead_letter = 5", "2: sow.s.dead_letter: expected true, false or the name of a topic, not 5"),
        (SOW + 'dead_letter_reasons = "purged"', "2: sow.s.dead_letter_reasons: expected a list, not 'purged'"),
        (SOW + 'dead_letter_reasons = ["late"]', "2: sow.s.dead_letter_reasons.0: expected 'time_limit', "),
        (
            QUEUE + 'expiration_model = "top"',
            "2: queue.q.expiration_model: expected 'override' or 'ceiling', not 'top'",
        ),
        (
            QUEUE + 'expiration_modle = "x"',
            "2: queue.q.expiration_modle: unknown key; did you mean 'expiration_model'?",
        ),
        ('[lapse]\nstandby = "yes"', "2: lapse.standby: expected true or false, not 'yes'"),
        ('definitions = "topic"\n', "1: definitions: unknown key; write it below [lapse]"),
        ("[queu.a]\n", "1: queu: unknown key; did you mean 'queue'?"),
        ("[queue.a.b]\n", '1: queue.a.b: unknown key; if the name has a dot, quote it: [queue."a.b"]'),
        ("[sow.a.b.c]\n", '1: sow.a.b: unknown key; if the name has a dot, quote it: [sow."a.b"]'),
        (QUEUE + "[queue.q.retyr]\n", "2: queue.q.retyr: unknown key; did you mean 'retry'?"),
        ("queue = 5", "1: queue: expected a table, not 5"),
        ("[queue.a]\nx =\n", "2: column 4: Invalid value"),
        ('\n[sow."a b"]', "2: sow.a b: 'a b' cannot name an entity: letters"),
        ("[queue.__x]", "1: queue.__x: '__x' cannot name an entity: Kafka's internal topics begin with '__'"),
        (
            '[queue.q]\ntopics = ["__consumer_offsets"]',
            "2: queue.q.topics: __consumer_offsets is internal to Kafka: its records are for brokers only",
        ),
        (
            '[queue.q]\nforward_to = "__consumer_offsets"',
            "2: queue.q.forward_to: __consumer_offsets is one of the topics that only Kafka writes; name another",
        ),
        ('[sow."dlq.s"]', "1: sow.dlq.s: 'dlq.s' names a dead-letter topic: only a queue that reads dlq.s can bear it"),
        (
            '[queue."dlq.s"]\ntopics = ["t"]',
            "1: queue.dlq.s: 'dlq.s' names a dead-letter topic: only a queue that reads",
        ),
        ("[sow.s]\n[queue.s]", "1: sow.s: there is a queue s, too"),
        (f'[lapse]\napp_id = "{"a" * 100}"\n[queue.{"b" * 139}]', f"3: queue.{'b' * 139}: its topic aaaa"),
        (
            f"[queue.{'b' * 200}]\n[users.{LONG}]\nkey_env = 'K'\n[users.{LONG}.entitlements.'.*']\nread = true",
            f"1: queue.{'b' * 200}: its topic lapse.bbbb",
        ),
        ('[queue."a.b"]\n[queue.a_b]', "2: queue.a_b: its topic lapse.a_b.commands clashes with one of a.b"),
    ],
)
def test_types_keys_and_names(text: str, message: str) -> None:
    assert refused(text).startswith(f"lapse.toml:{message}")


@pytest.mark.feature("X7", "Q2", "L8")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOW + 'topic = ""', "2: sow.s.topic: '' is no name that Kafka allows a topic"),
        (SOW + 'dead_letter = "a b"', "2: sow.s.dead_letter: 'a b' is no name that Kafka allows a topic"),
        (SOW + 'dead_letter = "lapse.s.commands"', "2: sow.s.dead_letter: lapse.s.commands is one of the topics that"),
        (
            QUEUE + 'dead_letter = "lapse-q.2-changelog"\n[queue."q.2"]',
            "2: queue.q.dead_letter: lapse-q.2-changelog is one of the topics that only lapse writes",
        ),
        (
            QUEUE + 'forward_to = "lapse-s-changelog"\n[sow.s]',
            "2: queue.q.forward_to: lapse-s-changelog is one of the topics that only lapse writes",
        ),
        (SOW + 'topic = "lapse.sow.s"', "2: sow.s.topic: lapse.sow.s is a topic of its own: what s writes would come"),
        (
            QUEUE + 'topics = ["a", "lapse.q.deliveries.ann"]',
            "2: queue.q.topics: lapse.q.deliveries.ann is a topic of its",
        ),
        (QUEUE + 'topics = ["lapse.events.q"]', "2: queue.q.topics: lapse.events.q is a topic of its own"),
        (QUEUE + 'topics = ["lapse.x"]', "2: queue.q.topics: lapse.x is one of the topics that only lapse writes"),
        (
            QUEUE + 'topics = ["lapse-s-changelog"]\n[sow.s]',
            "2: queue.q.topics: lapse-s-changelog is one of the topics that only lapse writes",
        ),
        (SOW + 'topic = "lapse.events.q"', "2: sow.s.topic: lapse.events.q is one of the topics that only lapse"),
        (SOW + 'key = ["/a", "/b", "/\'a\'"]', "2: sow.s.key: /a is named twice"),
        (SOW + 'hash_index = ["/a", "/a"]', "2: sow.s.hash_index: /a is named twice"),
        (QUEUE + 'topics = ["a", ".."]', "2: queue.q.topics.1: '..' is no name that Kafka allows a topic"),
        (
            QUEUE + 'topic_expirations = { x = "1s" }',
            "2: queue.q.topic_expirations.x: x is none of the queue's topics: q",
        ),
        (
            QUEUE + 'default_publish_target = "x"',
            "2: queue.q.default_publish_target: x is none of the queue's topics: what is published there would",
        ),
        (QUEUE + '[topic.x]\nexpiration = "1s"', "2: topic.x: no queue reads x, so its lifetime would not count (L8)"),
        (QUEUE + '[topic.q]\nexpiration = "0s"', "3: topic.q.expiration: '0s': has to be longer than 0"),
        (QUEUE + '[topic.q]\nttl = "1s"', "2: topic.q.expiration: has to be given"),
        (QUEUE + '[topic.".."]\nexpiration = "1s"', "2: topic...: '..' is no name that Kafka allows a topic"),
        (QUEUE + 'recovery_point = "x:0:5"', "2: queue.q.recovery_point: x:0:5 is of none of the queue's topics: q"),
    ],
)
def test_topics(text: str, message: str) -> None:
    assert refused(text).startswith(f"lapse.toml:{message}")


@pytest.mark.feature("C28", "C38", "X7")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (QUEUE + 'dead_letter = "q"', "2: queue.q.dead_letter: its dead letters come back to it: q → q (C28)"),
        (SOW + 'dead_letter = "s"', "2: sow.s.dead_letter: its dead letters come back to it: s → s (C28)"),
        (
            '[queue.a]\ndead_letter = "b"\n[queue.b]\ndead_letter = "a"',
            "2: queue.a.dead_letter: its dead letters come back to it: a → b → a (C28)",
        ),
        (
            '[sow.a]\ndead_letter = "b"\n[queue.b]\nforward_to = "c"\n[queue.c]\nforward_to = "a"',
            "2: sow.a.dead_letter: its dead letters come back to it: a → b → c → a (C28)",
        ),
        (
            '[queue.a]\ntopic_pattern = "dlq.*"\ndefault_publish_target = "dlq.x"',
            "1: queue.a.dead_letter: its dead letters come back to it: a → a (C28)",
        ),
        (
            '[queue.a]\ntopic_pattern = "f.*"\ndefault_publish_target = "fx"\ndead_letter = "failed"',
            "4: queue.a.dead_letter: its dead letters come back to it: a → a (C28)",
        ),
        (
            '[queue.a]\nforward_to = "b"\n[queue.b]\nforward_to = "a"',
            "2: queue.a.forward_to: a circle: a → b → a (C38)",
        ),
    ],
)
def test_circles(text: str, message: str) -> None:
    assert refused(text) == f"lapse.toml:{message}"


@pytest.mark.feature("C28")
def test_what_is_no_circle() -> None:
    loads('[queue.a]\ndead_letter = "a"\ndead_letter_reasons = []')
    loads('[queue.a]\ndead_letter = "b"\n[queue.b]\n[queue.c]\ntopics = ["b"]\nforward_to = "d"')
    loads('[queue.a]\ntopic_pattern = ".*"\ndefault_publish_target = "x"')


@pytest.mark.feature("S1", "S11", "X7")
@pytest.mark.parametrize("path", ["", "symbol", "/", "/a[", "/a + 1", "[0]", "/a//b", "/'a", "KEY()"])
@pytest.mark.parametrize("key", ["key", "hash_index"])
def test_paths(key: str, path: str) -> None:
    assert refused(f'[sow.s]\n{key} = "{path}"').startswith(f"lapse.toml:2: sow.s.{key}: ")


@pytest.mark.feature("X5", "X7")
def test_security(tmp_path: Path) -> None:
    failures = refused('[security]\nprotocol = "SASL_SSL"')
    assert failures == 'lapse.toml:1: security.username: is required with protocol = "SASL_SSL"'
    assert "hunter2" not in refused('[security]\npasword = "hunter2"')
    assert "4711" not in refused("[security]\npassword = 4711")
    file = tmp_path / "lapse.toml"
    file.write_text('[security]\nprotocol = "SSL"\nca_file = "nowhere.pem"\n')
    with pytest.raises(ConfigError, match=r"lapse.toml:3: security.ca_file: there is no file nowhere.pem"):
        load(file)


def refused(text: str) -> str:
    """What is told of a configuration."""
    with pytest.raises(ConfigError) as caught:
        loads(text)
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_of_very_many_mistakes_the_first_are_reported_and_the_others_counted() -> None:
    """Looking for each one's line in the whole file took an hour of CPU."""
    failures = refused("[sow.x]\n" + "".join(f"k{number} = 1\n" for number in range(40_000))).splitlines()
    assert len(failures) == 51
    assert failures[0].startswith("lapse.toml:2: sow.x.k0: unknown key")
    assert failures[49].startswith("lapse.toml:51: sow.x.k49: unknown key")
    assert failures[50] == "lapse.toml: and 39,950 faults more; correct these first"


@pytest.mark.feature("X7")
def test_a_key_of_too_many_parts_is_refused_where_it_stands() -> None:
    assert refused(QUEUE + "a." * 5_000 + "b = 1").startswith("lapse.toml:2: a key has more than 64 parts")
    assert refused(QUEUE + "a." * 60 + "b = 1").startswith("lapse.toml:2: queue.q.a: unknown key")


@pytest.mark.feature("X7", "X4")
def test_a_user_without_a_right_needs_no_topic() -> None:
    """So a long name of an entity that this user may not use is no fault."""
    users = f"[users.{LONG}]\nkey_env = 'K'\n[users.{LONG}.entitlements.orders]\nread = true"
    assert len(loads(f"[lapse]\ndefinitions = 'file'\n[queue.{'b' * 200}]\n[queue.orders]\n{users}").queue) == 2

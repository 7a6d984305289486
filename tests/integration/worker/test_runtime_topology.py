"""The topics of a deployment: created, checked, missing, of the wrong shape, made anew behind lapse's back."""

import functools
import json

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from lapse.config import load
from lapse.config.definition import Definition, DefinitionChange
from lapse.runtime.topics import cluster as cluster_module
from lapse.runtime.topics.advice import warnings
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definition_draft import Draft
from lapse.runtime.topics.difference import Difference
from support.kafka import created_topic
from support.kafka.log import texts, until
from support.processes.deployment import Deploy, Deployment
from support.suite.at_length import cases

REFUSED = 1


@functools.cache
def admin(here: Deployment) -> AdminClient:
    """One connection per deployment: what it was asked for dies with it."""
    return AdminClient({"bootstrap.servers": here.servers})


def topics_of(here: Deployment) -> dict[str, int]:
    found = admin(here).list_topics(timeout=15).topics
    return {name: len(topic.partitions) for name, topic in found.items() if here.token in name}


def delete(here: Deployment, *names: str) -> None:
    for future in admin(here).delete_topics(list(names)).values():
        future.result(15)
    until(lambda: not set(names) & set(topics_of(here)), "the topics gone")


def create(here: Deployment, name: str, partitions: int = 1, **config: str) -> None:
    created_topic.create(admin(here), NewTopic(name, partitions, 1, config=config))


@pytest.mark.feature("D4", "D1", "C27")
def test_apply_creates_what_is_missing_and_doing_it_again_changes_nothing(deploy: Deploy) -> None:
    """`--json` tells the same to programs; `check` agrees with it, before and after, and changes nothing."""
    here = deploy({"q": {"partitions": 3}, "two": {"topics": ["a{}", "b{}"], "dead_letter": False}})
    before = here.lapse("check", "--json")
    assert before.returncode == REFUSED
    assert json.loads(before.stdout)["fits"] is False
    assert topics_of(here) == {}
    done = here.lapse("apply", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    q, two = here.name("q"), here.name("two")
    expected = {
        q: 3,
        f"dlq.{q}": 3,
        f"lapse.{q}.commands": 3,
        f"lapse.{q}.deliveries": 3,
        f"lapse.events.{q}": 3,
        f"{here.app_id}-{q}-changelog": 3,
        here.name("a"): 1,
        here.name("b"): 1,
        f"lapse.{two}.commands": 1,
        f"lapse.{two}.deliveries": 1,
        f"lapse.events.{two}": 1,
        f"{here.app_id}-{two}-changelog": 1,
    }
    assert topics_of(here) == expected
    assert set(json.loads(done.stdout)["created"]) == set(expected)
    again = here.lapse("apply", "--json")
    assert again.returncode == 0
    assert not any(json.loads(again.stdout).values()), "nothing created, changed, granted, or different"
    assert "Nothing to do" in here.lapse("apply").stdout
    assert json.loads(here.lapse("check", "--json").stdout)["fits"] is True
    assert "fits" in here.lapse("check").stdout
    assert topics_of(here) == expected
    cluster, journal = Cluster(load(here.config)), f"{here.app_id}-{q}-changelog"
    cluster.alter([Difference(journal, "somebody's change", alter={"cleanup.policy": "delete"})])
    until(lambda: cluster.topology().differences(), "the broker knows of the change")
    assert "cleanup.policy is delete instead of compact" in here.lapse("check").stdout
    assert json.loads(here.lapse("apply", "--yes", "--json").stdout)["changed"] == [journal]
    until(lambda: not cluster.topology().differences(), "what apply has changed fits")


@pytest.mark.feature("D4", "C27")
def test_apply_makes_queues_over_dead_letters_as_they_have_to_be_at_once(deploy: Deploy) -> None:
    """The letter topics are made in the same run: their shape and their limit count as they will be."""
    queues = {
        "q": {"partitions": 3},
        "tombstones": {"topics": ["dlq.q{}"]},
        "deeper": {"topics": ["dlq.tombstones{}"]},
        "all": {"topic_pattern": r"dlq\.q{}", "default_publish_target": "dlq.q{}"},
    }
    here = deploy(queues)
    assert here.lapse("apply", "--yes").returncode == 0
    assert topics_of(here)[f"lapse.{here.name('deeper')}.commands"] == 3
    again = here.lapse("apply", "--json")
    assert again.returncode == 0, again.stderr
    assert not any(json.loads(again.stdout).values()), "nothing created, changed, granted, or different"


@pytest.mark.feature("C24", "C32")
def test_check_the_worker_and_the_client_warn_of_prefetching_against_few_deliveries(
    deploy: Deploy, caplog: pytest.LogCaptureFixture
) -> None:
    here = deploy(
        {
            "hasty": {"max_deliveries": 1},
            "one-by-one": {"max_deliveries": 1, "max_per_subscription_backlog": 1},
            "sent": {"max_deliveries": 1, "semantics": "at-most-once"},
            "grouped": {"group_by": "/g", "partitions": 2},
        }
    ).apply()
    printed = here.lapse("check")
    assert printed.returncode == 0
    warned = [line for line in printed.stderr.splitlines() if line.startswith("Warning: ")]
    assert [next(stem for stem in ("sent", "hasty", "grouped") if here.name(stem) in line) for line in warned] == [
        "sent",
        "hasty",
        "grouped",
    ]
    assert "max_deliveries: without effect" in warned[0]
    assert "prefetched" in warned[1]
    assert len(json.loads(here.lapse("check", "--json").stdout)["warnings"]) == len(warned)
    worker = here.worker().wait_for_shards(5)
    assert all(line.removeprefix("Warning: ") in worker.text for line in warned)
    for stem, backlog in (("hasty", 1), ("one-by-one", 5), ("sent", 5)):
        here.subscriber(stem, backlog).start().close()
    assert not caplog.records
    here.subscriber("hasty", 5).start().close()
    assert ["max_deliveries = 1" in record.message for record in caplog.records] == [True]


@pytest.mark.feature("D4")
def test_what_apply_has_created_is_there_when_it_ends(deploy: Deploy) -> None:
    """The controller has created hundreds of topics a second before the broker lists them."""
    here = deploy({f"many{number}": {} for number in range(100)}).apply()
    assert not Cluster(load(here.config)).topology(served=True).barred()


@pytest.mark.feature("Q16", "C27", "C40")
def test_a_worker_asks_for_few_settings_and_learns_all_that_it_heeds(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All settings of all topics took a worker with 300 queues a second, and `lapse apply` of a thousand twenty."""
    here = deploy({"q": {"expiration": "90s"}})
    here.configure({"q": {"expiration": "90s"}}, {"prices": {}})
    create(here, here.name("q"), **{"retention.ms": "60000"})
    here.apply()
    prices = here.name("prices")
    changelog = f"{here.app_id}-{prices}-changelog"
    cluster = Cluster(load(here.config))
    cluster.alter([Difference(changelog, "lowered", alter={"max.message.bytes": "2000000"})])
    until(lambda: cluster.topology().record_bytes(prices) < 2_000_000, "the broker knows of the change")
    everything, served = cluster.topology(), cluster.topology(served=True)
    assert warnings(served) == warnings(everything)
    assert any("keeps records for 1m" in warning for warning in warnings(served))
    assert served.record_bytes(prices) == everything.record_bytes(prices)
    assert served.barred() == everything.barred() == {}
    heeded = {here.name("q"), f"lapse.{prices}.deliveries", changelog, *served.written(prices)}
    assert served.limits.keys() == heeded
    assert len(everything.limits) > len(heeded)
    create(here, here.name("strange"))
    until(lambda: here.name("strange") in cluster.topology().existing, "the broker lists a topic of nobody")
    few = cluster.topology(served=True, few=True)
    assert {one.name for one in everything.wanted()} <= few.existing.keys()
    assert few.existing.items() <= everything.existing.items(), "and no other topics"
    for known in ("limits", "retentions", "copies", "brokers", "lacks"):
        assert getattr(few, known) == getattr(served, known), known
    monkeypatch.setattr(cluster_module, "_MANY", 0)
    narrow = cluster.topology()
    assert {name: set(one) for name, one in cluster.settings_of([changelog, "none"], ["retention.ms"]).items()} == {
        changelog: {"retention.ms"}
    }, "by the other way"
    for warning in ("limits", "retentions", "copies"):
        assert getattr(narrow, warning) == getattr(everything, warning), warning


@pytest.mark.feature("Q23", "C64")
def test_a_change_of_an_entity_looks_up_its_own_topics_only(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is created needs the names of all topics, with which it may clash."""
    here = deploy({"q": {}}).apply()
    name, config = here.name("q"), load(here.config)
    defined, listed = Definition(name, "queue", 1, "lapse.toml", {}), list[float]()
    every = Cluster.metadata

    def noted(cluster: Cluster, patience_s: float) -> object:
        listed.append(patience_s)
        return every(cluster, patience_s)

    monkeypatch.setattr(Cluster, "metadata", noted)
    for differs in (None, DefinitionChange(defined, defined)):
        assert Draft(defined, differs, config).differences()[1:] == ([], 1)
    assert listed == []
    delete(here, f"dlq.{name}")
    (lacking,) = Draft(defined, None, config).differences()[1]
    assert lacking.topic == f"dlq.{name}"
    assert listed


@pytest.mark.feature("C27")
def test_apply_sizes_what_holds_payloads_above_its_sources_and_raises_a_letter_topic_that_is_too_low(
    deploy: Deploy,
) -> None:
    """A worker starts all the same: its letters wait, should they be too large."""
    queues = {"q": {"dead_letter": "letters{}"}, "small": {"dead_letter": "letters{}"}}
    here = deploy(queues)
    here.configure(queues, {"prices": {}})
    letters, needed = here.name("letters"), 10_000_000 + (64 << 10)
    create(here, here.name("q"), **{"max.message.bytes": "10000000"})
    create(here, here.name("small"), **{"max.message.bytes": "1000"})
    create(here, letters, **{"max.message.bytes": "1000000"})
    done = here.lapse("apply", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changed"] == [letters]

    def limit_of(topic: str) -> int:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return int(admin(here).describe_configs([resource])[resource].result(15)["max.message.bytes"].value)

    until(lambda: limit_of(letters) == needed, "the broker tells of the change")  # it decides first, and learns then
    assert limit_of(f"lapse.{here.name('q')}.deliveries") == needed
    assert limit_of(f"lapse.{here.name('small')}.deliveries") == 8 << 20
    assert limit_of(f"lapse.sow.{here.name('prices')}") == 8 << 20
    assert json.loads(here.lapse("check", "--json").stdout)["fits"] is True


@pytest.mark.feature("L1")
def test_topics_that_lapse_creates_bear_the_brokers_time_and_the_journal_is_compacted(deploy: Deploy) -> None:
    here = deploy({"q": {}}).apply()
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics_of(here)]
    settings = {one.name: future.result(15) for one, future in admin(here).describe_configs(resources).items()}
    assert {name: config["message.timestamp.type"].value for name, config in settings.items()} == dict.fromkeys(
        settings, "LogAppendTime"
    )
    changelog = settings[f"{here.app_id}-{here.name('q')}-changelog"]
    assert changelog["cleanup.policy"].value == "compact"
    kept = changelog["delete.retention.ms"]  # longer than copies on disk are trusted, whatever the broker's default is
    assert (kept.value, kept.is_default) == ("86400000", False)
    letters = settings[f"dlq.{here.name('q')}"]
    assert (letters["cleanup.policy"].value, letters["retention.ms"].value) == ("delete", "-1")


@pytest.mark.feature("X7")
def test_a_worker_without_its_topics_refuses_to_start_and_says_what_to_do(deploy: Deploy) -> None:
    here = deploy({"q": {}})
    done = here.lapse("worker", "--no-supervise")
    assert done.returncode == REFUSED
    assert "run `lapse apply`" in done.stderr
    assert f"lapse.{here.name('q')}.commands: missing" in done.stderr
    assert "Traceback" not in done.stderr
    supervised = here.lapse("worker")
    assert supervised.returncode == REFUSED
    assert "starting it again" not in supervised.stderr
    here.apply()
    delete(here, f"lapse.events.{here.name('q')}")
    done = here.lapse("worker", "--no-supervise")
    assert done.returncode == REFUSED
    assert f"lapse.events.{here.name('q')}: missing" in done.stderr


@pytest.mark.feature("X7")
def test_topics_of_the_wrong_shape_are_named_and_left_alone(deploy: Deploy) -> None:
    """Another number of partitions cannot be mended by creating: nothing is created at all, and a person has to act."""
    here = deploy({"q": {"partitions": 2}})
    name = here.name("q")
    create(here, name, 2)
    create(here, f"lapse.{name}.commands", 1)
    before = topics_of(here)
    for command in (("apply", "--yes"), ("check",), ("worker", "--no-supervise")):
        done = here.lapse(*command)
        assert done.returncode == REFUSED, command
        said = " ".join((done.stdout + done.stderr).split())
        assert "has 1 partition;" in said
        assert "Traceback" not in said
    assert topics_of(here) == before


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("command", "text", "words"),
    [
        ("check", "[queue.a]\nexpiraton = '5s'\n", "did you mean 'expiration'"),
        ("check", "[queue.a]\nsemantics = 'at-most-once'\nfairness = 'fast'\n", "round-robin"),
        ("check", "[queue.a]\nlease_period = 30\n", "unit"),
        ("worker", "[queue.a\n", "lapse.toml"),
        ("worker", "[lapse]\ndefinitions = 'file'\n", "nothing to run"),
    ],
)
def test_a_faulty_configuration_is_refused_with_its_place(deploy: Deploy, command: str, text: str, words: str) -> None:
    """Every command reads it in the same way, and of those a worker is the slowest to start."""
    here = deploy({"a": {}})
    here.config.write_text(text)
    done = here.lapse(command)
    assert done.returncode == REFUSED
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.feature("C40", "L14")
def test_a_log_that_ends_before_what_is_remembered_of_it_does_not_hold_the_shard_up(deploy: Deploy) -> None:
    """The topic was made anew while nothing ran: what it no longer has leaves with `log_truncated`, the shard lives."""
    here = deploy({"q": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    here.write("q", *(f"old {number}" for number in range(5)))
    until(lambda: here.depth("q")["depth"] == 5, "the messages")
    worker.kill()
    delete(here, here.name("q"))
    create(here, here.name("q"), 1, **{"message.timestamp.type": "LogAppendTime"})
    worker.start().wait_for_shards(1)
    with here.subscriber("q", 10, timeout_s=60) as subscriber:
        letters = here.letters("q", 5)
        assert subscriber.receive(0.2) is None
    assert {texts(letter)["lapse-reasons"] for letter in letters} == {"log_truncated"}
    until(lambda: here.depth("q")["depth"] == 0, "an empty queue")


@pytest.mark.feature("Q16")
@pytest.mark.parametrize("store", cases(["rocksdb"], ["memory"]))  # on disk it has a copy of what is no more
def test_a_queue_whose_changelog_was_made_anew_begins_at_its_recovery_point_again(deploy: Deploy, store: str) -> None:
    """The state is gone with it, and nothing is lost: at most, what was acknowledged is there once more."""
    here = deploy({"q": {}}, store=store, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(1)
    here.write("q", "a", "b")
    with here.subscriber("q", 10) as subscriber:
        first = subscriber.receive(15)
        assert first is not None
        subscriber.settle("acknowledge", [first], wait=True)
    assert worker.stop() == 0
    delete(here, f"{here.app_id}-{here.name('q')}-changelog")
    here.apply()
    for _ in range(2):
        worker.start().wait_for_shards(1)
        until(lambda: here.depth("q")["depth"] in (1, 2), "what was not acknowledged")
        worker.kill()


@pytest.mark.feature("C40", "C81")
def test_check_and_the_worker_compare_retention_with_lifetimes(deploy: Deploy) -> None:
    here = deploy(
        {
            "long": {"expiration": "90s"},
            "fitting": {"expiration": "60s"},
            "shorter": {"topics": ["short{}", "endless{}"], "expiration": "2h", "topic_expirations": {"short{}": "1m"}},
            "off": {},
            "unsaid": {},
            "latest": {"expiration": "1s"},
            "gone": {"expiration": "8d"},
        }
    )
    for stem in ("long", "fitting", "short", "off"):
        create(here, here.name(stem), **{"retention.ms": "60000"})
    create(here, here.name("endless"), **{"retention.ms": "-1"})
    create(here, here.name("latest"), **{"cleanup.policy": "compact"})
    create(here, f"dlq.{here.name('fitting')}", **{"cleanup.policy": "compact", "max.message.bytes": "2000000"})
    here.apply()
    printed = here.lapse("check")
    assert printed.returncode == 0
    lines = [line for line in printed.stderr.splitlines() if line.startswith("Warning: ")]
    (letters,) = [line for line in lines if "for its dead letters is compacted" in line]
    assert f"topic dlq.{here.name('fitting')}" in letters
    lines.remove(letters)  # what a worker does not look at when it starts
    warned = {line.split(":")[1].split()[1]: line for line in lines}
    assert set(warned) == {here.name(stem) for stem in ("long", "off", "latest", "gone")}
    assert "keeps records for 1m, and messages may live for 90s" in warned[here.name("long")]
    assert "keeps records for 1m, and messages may live until they are settled" in warned[here.name("off")]
    assert "keeps records for 7d, and messages may live for 8d" in warned[here.name("gone")]
    assert "is compacted" in warned[here.name("latest")]
    worker = here.worker().wait_for_shards(7)
    assert all(line.removeprefix("Warning: ") in worker.text for line in warned.values())


@pytest.mark.feature("X5", "X7")
def test_a_broker_that_cannot_be_spoken_to_is_reported_with_its_cause_and_without_the_password(deploy: Deploy) -> None:
    here = deploy({"q": {}})
    text = here.config.read_text("utf-8")
    sasl = '\n[security]\nprotocol = "SASL_PLAINTEXT"\nusername = "u"\npassword = "hunter2"\n'
    for security, cause in (
        (sasl, "SASL PLAIN mechanism handshake failed"),
        ('\n[security]\nprotocol = "SSL"\n', "SSL"),
    ):
        here.config.write_text(text + security, "utf-8")
        printed = here.lapse("check")
        assert printed.returncode == REFUSED
        assert f"no answer from Kafka at {here.servers}: " in printed.stderr
        assert cause in printed.stderr
        assert "[security]" in printed.stderr, "the next step"
        assert "hunter2" not in printed.stderr + printed.stdout

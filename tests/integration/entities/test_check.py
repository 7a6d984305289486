"""`lapse check` and `lapse apply` beyond missing topics: what a worker would refuse, and what is perhaps not meant."""

import json
import os
import tomllib
from pathlib import Path

import pytest
import tomlkit
from confluent_kafka.admin import AdminClient

from lapse.protocol.bookmark import BookmarkRange
from lapse.topic_creation import NewTopic
from support.kafka import created_topic
from support.kafka.log import until, write
from support.processes import fork_server
from support.processes.deployment import Deploy, Deployment
from support.processes.entitled import Entitled
from unit.runtime.topics.test_advice import IDLE, WARNED_OF

REFUSED = 1


def create(here: Deployment, topic: str, partitions: int) -> None:
    new = NewTopic(topic, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})
    created_topic.create(AdminClient({"bootstrap.servers": here.servers}), new)


@pytest.fixture
def office(kafka: str, tmp_path: Path) -> Entitled:
    """A deployment with a user, applied."""
    deployment = Entitled(kafka, tmp_path, {})
    deployment.users = {"alice": {"entitlements": {".*": {"read": True}}}}
    deployment.configure({"orders": {}})
    deployment.apply()
    for file in tmp_path.glob("*.key"):
        file.chmod(0o600)
    return deployment


@pytest.mark.feature("X4", "X7")
def test_a_key_that_the_worker_refuses_does_not_pass_check(office: Entitled) -> None:
    assert office.lapse("check").returncode == 0
    key = office.directory / "alice.key"
    key.write_text("short\n")
    for found in (office.lapse("check"), office.lapse("check", "--json"), office.lapse("worker", "--no-supervise")):
        assert found.returncode
        assert f"users.alice: {key} holds a key of less than 16 bytes" in found.stderr
        assert "short" not in found.stderr + found.stdout
    (office.directory / "worker.key").unlink()
    found = office.lapse("check")
    assert found.returncode == REFUSED
    assert "users.alice:" in found.stderr  # every fault at once
    assert "worker.key: cannot be read: No such file" in found.stderr


@pytest.mark.feature("X4", "X7")
def test_a_key_file_that_everybody_can_read_is_reported(office: Entitled) -> None:
    assert "chmod" not in office.lapse("check").stderr
    (office.directory / "alice.key").chmod(0o644)
    (office.directory / "worker.key").chmod(0o602)
    found = office.lapse("check")
    assert found.returncode == 0
    assert f"can read {office.directory}/alice.key" in found.stderr
    assert f"can change {office.directory}/worker.key" in found.stderr
    worker = office.worker().wait_for_shards(1)
    assert worker.text.count("chmod o-rwx") == 2
    assert worker.stop() == 0


@pytest.mark.feature("X7")
def test_a_hostile_file_is_refused_in_a_line_by_every_command(deploy: Deploy) -> None:
    """Each ends by itself, whatever the file makes of its memory or its stack, and creates nothing."""
    here = deploy({"orders": {}})
    good = here.config.read_text()
    chain = "".join(f'[queue.q{at}]\nforward_to = "q{at + 1}"\n' for at in range(300)) + '[queue.q300]\nlease = "1s"\n'
    bad = {
        "nested too deep": good + "[queue.deep]\nx = " + "[" * 50_000,
        "a number is too long": good + "[queue.long]\npartitions = " + "1" * 10_000,
        "expected a duration": good + "[queue.big]\nlease_period = '" + "a" * 2_000_000 + "'",
        "lease: unknown": good + chain,
        "1ms": good.replace('session_timeout = "3s"', 'session_timeout = "1ms"'),
        "10d": good.replace('session_timeout = "3s"', 'session_timeout = "10d"'),
    }
    for stated, text in bad.items():
        here.config.write_text(text)
        done = [here.lapse("check"), here.lapse("apply", "--yes")]
        if stated in ("nested too deep", "1ms"):  # a process of its own
            done.append(here.lapse("worker", "--no-supervise"))
        for one in done:
            assert one.returncode
            assert "session_timeout: has to be from" in one.stderr if stated in ("1ms", "10d") else stated in one.stderr
            assert "Traceback" not in one.stderr
            assert len(one.stderr) < 3_000, one.stderr[:5_000]
    assert here.name("orders") not in here.connection.partitions()
    here.config.write_bytes(b"\xef\xbb\xbf" + good.encode())
    here.apply().worker().wait_for_shards(1)


@pytest.mark.feature("X7")
def test_a_queue_name_that_another_deployment_uses_is_reported_by_both(deploy: Deploy) -> None:
    one = deploy({"orders": {"partitions": 2}}).apply()
    assert "another deployment" not in one.lapse("check").stderr
    other = deploy({})
    other.token = one.token  # the same names, under another application id
    other.configure({"orders": {"partitions": 2}, "web-orders": {}})
    assert "another deployment" in other.lapse("check").stderr, "before it has a journal of its own"
    other.apply()
    for here, there in ((one, other), (other, one)):
        printed = [line for line in here.lapse("check").stderr.splitlines() if "another deployment" in line]
        assert len(printed) == 1, printed
        assert printed[0].startswith(f"Warning: {here.name('orders')}: ")
        assert f"{there.app_id}-{there.name('orders')}-changelog" in printed[0]
    worker = other.worker().wait_for_shards(3)
    assert f"{one.app_id}-{one.name('orders')}-changelog" in worker.text


@pytest.mark.feature("Q2", "Q17")
def test_a_pattern_over_topics_with_other_partition_counts_is_served_and_reported(deploy: Deploy) -> None:
    here = deploy({"all": {"topic_pattern": "part{}-.*", "default_publish_target": "part{}-a", "partitions": 2}})
    here.apply()
    for stem, partitions in (("part-b", 3), ("part-c", 1)):
        create(here, stem.replace("part", here.name("part")), partitions)
    advice = f"{here.name('part')}-b has 3 partitions and the queue 2 shards, and 1 more topics"
    until(lambda: advice in here.lapse("check").stderr, "the broker lists both topics")
    assert here.lapse("check").returncode == 0
    here.worker().wait_for_shards(2)
    taken = {f"{here.name('part')}-{topic}": count for topic, count in (("a", 2), ("b", 3), ("c", 1))}
    sent = [(topic, partition) for topic, count in taken.items() for partition in range(count)]
    for at, (topic, partition) in enumerate(2 * sent):
        write(here.servers, topic, [b"%d" % at], partition=partition)
    with here.subscriber("all", 100) as subscriber:
        got: dict[tuple[str, int], list[int]] = {}
        for delivery in subscriber.messages(timeout=20):
            place = BookmarkRange.parse(str(delivery.bookmark))
            got.setdefault((place.topic, place.partition), []).append(int(delivery.value or b""))
            delivery.acknowledge()
            if sum(map(len, got.values())) == 2 * len(sent):
                break
    assert got == {place: [at, at + len(sent)] for at, place in enumerate(sent)}, "in the order of each partition"

    def settled() -> dict[tuple[str, int], int]:
        """The shard of each partition."""
        done = [one for one in here.events("all") if one.event == "acknowledged"]
        return {(place.topic, place.partition): one.partition for one in done for place in one.messages}

    until(lambda: len(settled()) == len(sent), "all are acknowledged")
    assert settled() == {place: place[1] % 2 for place in sent}


@pytest.mark.feature("X7", "Q4", "Q9", "Q24", "L7", "L10", "C10", "C32", "C87", "Q13")
def test_all_that_cannot_act_is_reported_at_once_by_the_command_as_a_process(kafka: str, tmp_path: Path) -> None:
    """Filters, groups and lifetimes beside what the unit test has, in one file, as text and as JSON."""
    here = Entitled(kafka, tmp_path, {})
    idle = tomllib.loads(IDLE)
    here.users = {"alice": {"entitlements": {"grouped{}": {"read": True, "filter": "/desk = 'A'"}}}}
    more = {
        "grouped": {"group_by": "/g"},
        "spread": {"group_by": "/g", "partitions": 2},
        "deep": {"target_queue_depth": 10},
        "short": {"expiration": "99ms"},
    }
    idle["queue"]["of_topics"]["topic_expirations"] = {"of_topics{}": "1m"}
    here.configure({**idle["queue"], **more}, idle["sow"])
    text = here.config.read_text("utf-8") + tomlkit.dumps({"topic": {here.name("read"): idle["topic"]["read"]}})
    here.config.write_text(text, "utf-8")
    here.apply()

    def check(*options: str, code: int = 0) -> tuple[str, str]:
        words = ["-m", "lapse", "check", "--config", str(here.config), *options]
        done = fork_server.run(words, {**os.environ, **here.environment()})
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr

    findings = json.loads(check("--json")[0])
    assert (findings["fits"], findings["differences"]) == (True, [])
    out, err = check()
    assert out == "The configuration is right and the cluster fits it.\n"
    lines = err.splitlines()
    assert lines == [f"Warning: {one}" for one in findings["warnings"]]
    found = [one.replace(f"-{here.token}", "") for one in findings["warnings"]]
    expected = [
        *WARNED_OF,
        "short: expiration: 99 ms are about as long as a message takes",
        "queue deep: target_queue_depth: each message beyond it that somebody acknowledges is remembered",
        "queue grouped: group_by, and alice sees only what matches a filter: the first message of a group",
        "queue spread: group_by keeps a group in order within each of 2 partitions only.",
        "the cluster has no authorizer: ",
    ]
    for start in expected:
        assert sum(one.startswith(start) for one in found) == 1, (start, found)
    # At-least-once and more deliveries than a consumer holds ahead of its work are told of, too.
    others = [one for one in found if not one.startswith(tuple(expected))]
    assert all("max_deliveries" in one for one in others), others


@pytest.mark.feature("C64", "C81", "X7")
def test_an_entity_of_which_the_file_says_otherwise_is_checked_as_it_is_defined(deploy: Deploy) -> None:
    """The workers serve the definition, whatever the file says."""
    here = deploy({"orders": {}}, definitions="topic").apply()
    name = here.name("orders")
    late = f"{name}.late"
    assert here.lapse("queue", "alter", name, f"dead_letter={late}").returncode == 0
    printed = here.lapse("check")
    assert "says otherwise" in printed.stderr
    assert "missing" not in printed.stderr + printed.stdout, "it was created for the definition"
    admin = AdminClient({"bootstrap.servers": here.servers})
    admin.delete_topics([late])[late].result(15)
    until(lambda: late not in here.connection.partitions(), "somebody has deleted it")
    assert f"{name} as it is defined: topic {late}: missing" in here.lapse("check").stderr


@pytest.mark.feature("Q16", "Q23", "X7")
@pytest.mark.parametrize("definitions", ["file", "topic"])
def test_a_queue_that_would_begin_in_the_future_is_refused_before_anything_is_made(
    deploy: Deploy, definitions: str
) -> None:
    here = deploy({"orders": {"recovery_point": "2999-01-01T00:00:00Z"}, "others": {}}, definitions=definitions)
    name, fault = here.name("orders"), "in the future"
    found = here.lapse("check", "--json")
    assert found.returncode == REFUSED
    assert fault in found.stdout
    done = here.lapse("apply", "--yes")
    assert done.returncode == REFUSED
    assert fault in done.stdout + done.stderr
    assert 'Write "end"' in " ".join((done.stdout + done.stderr).split())
    topics = AdminClient({"bootstrap.servers": here.servers}).list_topics(timeout=15).topics
    assert f"lapse.{name}.commands" not in topics
    assert f"lapse.{here.name('others')}.commands" in topics, "others do not wait for it"
    assert name not in here.lapse("definitions").stdout
    here.configure({"orders": {"recovery_point": "2026-01-01T00:00:00Z"}, "others": {}}, definitions=definitions)
    here.apply()
    assert here.lapse("check").returncode == 0
    here.configure({"orders": {"recovery_point": "2999-01-01T00:00:00Z"}, "others": {}}, definitions=definitions)
    found, done = here.lapse("check", "--json"), here.lapse("apply", "--yes")
    changes_it = definitions == "topic"  # with the file alone, queues that are there go on where they were
    assert (fault in found.stdout, fault in done.stderr) == (changes_it, changes_it)
    assert (found.returncode, done.returncode) == (int(changes_it), int(changes_it))

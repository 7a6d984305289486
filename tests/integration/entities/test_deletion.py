"""Deleting queues and SOW topics: refused, forced, finished after a crash, and begun anew (C4, L11).

One worker serves all entities of the first part, loses them one after the other, and serves the rest.
"""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka.admin import AdminClient

from lapse.cli import main
from lapse.config.document import load
from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse.runtime.topics import topic_removal
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.interrupted_removal import InterruptedRemovals
from lapse.runtime.topics.standing import Standing
from lapse.runtime.topics.topology import Topology
from lapse.topic_creation import NewTopic
from lapse_client.error import CommandFailed, EntityDeleted, LapseError
from lapse_client.queue.queue import Queue
from lapse_client.session.shard import Shard
from support.consumers.kcat import Kcat
from support.kafka.created_topic import create
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.worker import Worker

QUEUES = {
    "orders": {"partitions": 2, "expiration": "enabled"},
    "forced": {"dead_letter_reasons": ["purged"]},
    "wide": {"partitions": 3},
    "total": {"partitions": 2, "ordering": "total"},
    "deep": {"target_queue_depth": 2},
    "unheard": {},
    "other": {},
}
SHARDS = 10 + 2


@pytest.fixture(scope="module")
def lot(deploy: Deploy) -> Iterator[Deployment]:
    """Queues and a SOW topic, and one worker."""
    deployment = deploy(QUEUES)
    deployment.configure(QUEUES, {"prices": {"partitions": 2}}, store="rocksdb")
    deployment.apply().worker().wait_for_shards(SHARDS, 120)
    yield deployment
    assert deployment.workers[0].running, "the worker went on through all of it"


def lapse(deployment: Deployment, *arguments: str) -> Result:
    """Run a command on the deployment's cluster."""
    return CliRunner().invoke(main, [*arguments, "--bootstrap-servers", deployment.servers], env={"COLUMNS": "200"})


def topics(deployment: Deployment, stem: str) -> set[str]:
    """What is on the cluster that has to do with an entity."""
    name = deployment.name(stem)
    return {one for one in AdminClient({"bootstrap.servers": deployment.servers}).list_topics().topics if name in one}


def own(deployment: Deployment, stem: str) -> set[str]:
    """What lapse keeps for an entity, and removes with it."""
    return topics(deployment, stem) & set(topic.entity_topics(deployment.app_id, deployment.name(stem)))


def moments(worker: Worker, words: str) -> list[str]:
    """When a worker logged some words, as text that sorts by time."""
    return [line[1:24] for line in worker.text.splitlines() if words in line]


def still_served(deployment: Deployment, stem: str) -> None:
    """A message comes and is settled."""
    deployment.write(stem, "still here")
    with deployment.subscriber(stem, 1) as others:
        delivery = others.receive(60)
        assert delivery is not None
        assert delivery.value == b"still here"
        delivery.acknowledge()


@pytest.mark.feature("C4", "L11", "C37", "D4")
def test_a_queue_is_deleted_when_it_is_empty_and_the_worker_goes_on(lot: Deployment) -> None:
    """Refused while something is leased, by whom it says; then empty, deleted, and the others are served."""
    name = lot.name("orders")
    lot.write("orders", "leased")
    lot.write("orders", "waiting", partition=1)
    with lot.subscriber("orders", 1, name="desk-7") as subscriber, lot.queue("orders") as queue:
        assert subscriber.receive(20) is not None
        until(lambda: queue.depth()["depth"] == 2, "two messages")
        refused = lapse(lot, "queue", "delete", name)
        assert refused.exit_code == 1
        assert "1 leased: 1 by desk-7" in refused.output
        assert "until 20" in refused.output
        assert "1 available" in refused.output
        assert queue.depth()["leased"] == 1, "a refused deletion changes nothing"
        lot.write("orders", "more", partition=1)
        until(lambda: queue.depth()["depth"] == 3, "a refused deletion keeps nothing out")
        queue.purge(leased=True)
    # What has expired leaves first, with its letter.
    lot.write("orders", "brief", headers=[("lapse-ttl-ms", b"20")])
    time.sleep(0.02)
    done = lapse(lot, "queue", "delete", name, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "deleted": name,
        **dict.fromkeys(
            ("leased", "available", "delayed", "scheduled", "dying", "transferring", "unconfirmed", "held"), 0
        ),
    }
    left = {name, topic.dead_letters(name), topic.events(name)}
    until(lambda: topics(lot, "orders") == left, "the changelog goes last")
    (letter,) = lot.letters("orders", 1)
    assert dict(letter.headers() or [])["lapse-reasons"] == b"time_limit"
    emitted = [event for event in lot.events("orders") if event.event == "deleted"]
    assert sorted((event.partition, event.detail) for event in emitted) == [(0, "by command"), (1, "by command")]
    with pytest.raises(LapseError, match="there is no queue"):
        lot.depth("orders")
    until(lambda: not list(lot.directory.rglob(f"{name}-*.rocksdb")), "copies on disk are gone as well")
    assert len(list(lot.directory.rglob("*.rocksdb"))) == SHARDS - 2
    still_served(lot, "other")


@pytest.mark.feature("C4")
def test_a_deletion_whose_answer_went_with_the_topics_is_found_done(
    lot: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the client's connection were interrupted just then, and the topics gone when it is back."""
    queue = lot.queue("unheard").start()
    assert queue._session is not None
    channel = queue._session.channel
    send = channel.sender.send

    def deaf(shard: Shard, command: Command) -> "Future[Answer]":
        if command.command == "delete":
            channel.endpoints[1].unassign()
        return send(shard, command)

    monkeypatch.setattr(channel.sender, "send", deaf)
    assert queue.delete() == {}
    assert own(lot, "unheard") == set()
    with pytest.raises(LapseError, match="there is no queue"):
        lot.queue("unheard").start()


@pytest.mark.feature("C4", "C37")
def test_force_takes_leased_and_waiting_messages_along_as_purged(lot: Deployment) -> None:
    """The subscriber learns of it; each message leaves with an event, with a letter where those are asked for."""
    lot.write("forced", "a", "b", "c")
    with lot.subscriber("forced", 1, heartbeat_timeout_ms=3_000) as subscriber, lot.queue("forced") as queue:
        assert subscriber.receive(20) is not None
        until(lambda: queue.depth()["depth"] == 3, "three messages")
        counts = queue.delete(force=True)
        assert (counts["leased"], counts["available"]) == (1, 2)
        with pytest.raises(EntityDeleted, match="is no more"):
            subscriber.receive(20)
    letters = lot.letters("forced", 3)
    assert {dict(letter.headers() or [])["lapse-reasons"] for letter in letters} == {Reason.PURGED.encode()}
    until(lambda: not own(lot, "forced"), "the changelog goes last")


@pytest.mark.feature("C4", "X7")
def test_a_message_published_before_the_deletion_stands_in_its_way(lot: Deployment) -> None:
    """Whatever the log held when the command came is read before it is said that the queue is empty."""
    with lot.queue("wide") as queue:
        for number in range(3):
            lot.write("wide", str(number), partition=number)
            with pytest.raises(CommandFailed, match=f"{number + 1} available"):
                queue.delete()
    kcat = Kcat(lot, "wide", 1)
    assert "partition 0" in kcat.ask("delete")["error"]
    assert lot.depth("wide")["depth"] == 3


@pytest.mark.feature("C77", "C4", "Q13")
def test_what_a_transfer_has_put_beyond_the_target_depth_stands_in_the_way_of_a_deletion(lot: Deployment) -> None:
    """The shard has not read it. So it looks for it in the log, and a forced deletion is refused."""
    name = lot.name("deep")
    lot.write("deep", *"abcd")
    lot.write("deep", "put", headers=[("lapse-transfer", f"{name}/t-9".encode()), ("lapse-ttl-ms", b"0")])
    with lot.queue("deep") as queue:
        until(lambda: queue.depth()["depth"] == 2, "what is active")
        refused = lapse(lot, "queue", "delete", name, "--force", "--yes")
        assert refused.exit_code == 1, refused.output
        assert "1 unconfirmed" in refused.output
        assert "Unfinished is transfer t-9" in refused.output
        assert queue.depth()["unconfirmed"] == 0, "it is not taken in"
        queue.purge()
        until(lambda: queue.depth()["depth"] == 2, "what was behind that")
        queue.purge()
        until(lambda: queue.depth()["unconfirmed"] == 1, "it has entered")
        assert Kcat(lot, "deep").ask("transfer_discard", transfer="t-9")["counts"] == {"removed": 1}
        lot.write("deep", *"efgh")
        queue.delete(force=True)
    until(lambda: not own(lot, "deep"), "the changelog goes last")


@pytest.mark.feature("C4", "Q17")
def test_a_queue_in_one_order_looks_at_all_partitions_before_it_ends(lot: Deployment) -> None:
    with lot.queue("total") as queue:
        lot.write("total", "x", partition=1)
        with pytest.raises(CommandFailed, match="1 available"):
            queue.delete()
        queue.purge()
        queue.delete()
    until(lambda: not own(lot, "total"), "the changelog goes last")


@pytest.mark.feature("C4", "S3", "L11")
def test_a_sow_topic_is_deleted_like_a_queue(lot: Deployment) -> None:
    for partition in range(2):
        lot.write("prices", '{"n": 1}', key=b"k%d" % partition, partition=partition)
    name = lot.name("prices")
    kcats = [Kcat(lot, "prices", partition) for partition in range(2)]
    for kcat in kcats:
        until(lambda kcat=kcat: kcat.ask("depth")["counts"]["records"] == 1, "a record")
    refused = lapse(lot, "sow", "delete-topic", name)
    assert refused.exit_code == 1
    assert "2 records" in refused.output
    done = lapse(lot, "sow", "delete-topic", name, "--force", "--yes")
    assert done.exit_code == 0, done.output
    until(lambda: not own(lot, "prices"), "the changelog goes last")
    gone = [event for event in lot.events("prices") if event.reasons]
    assert sorted((event.key, event.reasons) for event in gone) == [(b"k0", ("purged",)), (b"k1", ("purged",))]
    still_served(lot, "other")


@pytest.mark.feature("C4", "Q1")
def test_several_queues_are_deleted_at_once_while_another_is_at_work(deploy: Deploy) -> None:
    stems = [f"gone{number}" for number in range(4)]
    one = deploy({**{stem: {"partitions": 2} for stem in stems}, "other": {}}).apply()
    workers = [one.worker(), one.worker()]
    until(lambda: sum(worker.shards for worker in workers) >= 9, "the shards are shared", 60)
    values = [str(number) for number in range(2_000)]
    one.write("other", *values)
    with one.subscriber("other", 10) as subscriber:
        with ThreadPoolExecutor(len(stems)) as threads:
            done = [threads.submit(lapse, one, "queue", "delete", one.name(stem)) for stem in stems]
            got = []
            for delivery in subscriber.messages(60):
                got.append((delivery.value or b"").decode())
                delivery.acknowledge()
                if len(got) >= len(values):
                    break
        assert sorted(got) == sorted(values), "each once, none twice"
    for result in done:
        assert result.result().exit_code == 0, result.result().output
    until(lambda: not any(own(one, stem) for stem in stems), "the topics of all are removed", 90)
    still_served(one, "other")
    for worker in workers:
        assert worker.running, one.logs()


@pytest.mark.feature("C4")
def test_workers_that_have_lost_their_only_queue_stay_and_take_nothing_from_others(deploy: Deploy) -> None:
    """They serve nothing any more, not even a queue of the same name that comes later: another worker does.

    The last of them removes the topics, so that none reads a missing topic, or serves the later queue as the former.
    """
    one = deploy({"only": {"partitions": 2}}).apply()
    idle = [one.worker().wait_for_shards(2), one.worker().wait_for_shards(1)]
    assert lapse(one, "queue", "delete", one.name("only")).exit_code == 0
    until(lambda: not own(one, "only"), "the topics are removed", 60)
    until(lambda: all("nothing is left to serve" in worker.text for worker in idle), "the workers say so")
    removed = min(moment for worker in idle for moment in moments(worker, "is deleted; removed"))
    assert removed >= max(moment for worker in idle for moment in moments(worker, "nothing is left to serve"))
    assert "there is nothing to take over" not in one.logs()
    assert "not found in cluster metadata" not in one.logs()
    one.apply()
    one.worker().wait_for_shards(2, 60)
    for partition in range(2):
        one.write("only", "anew", partition=partition)
    until(lambda: one.depth("only")["depth"] == 2, "both shards read", 60)
    for worker in idle:
        assert worker.running, one.logs()
        assert worker.stop() == 0


@pytest.mark.feature("C4", "Q16", "Q17")
def test_a_deletion_outlives_crashes_and_every_worker_lets_go(deploy: Deploy) -> None:
    """Two workers share the shards and are killed when it is decided; those that follow bring it to its end.

    Of the second queue one topic is gone already, as if a worker had died between two of them.
    """
    queues = {"orders": {"partitions": 2}, "half": {}, "other": {"partitions": 2}}
    one = deploy(queues, store="rocksdb", standby=True).apply()
    workers = [one.worker(), one.worker()]
    until(lambda: sum(worker.shards for worker in workers) >= 5, "the shards are shared", 60)
    for stem in ("orders", "half"):
        assert Kcat(one, stem, 0).ask("delete")["status"] == "ok"
    for worker in workers:
        worker.kill()
    assert own(one, "orders"), "killed before the topics were removed"
    admin = AdminClient({"bootstrap.servers": one.servers})
    for future in admin.delete_topics([topic.commands(one.name("half"))]).values():
        future.result()
    workers = [one.worker(), one.worker()]
    until(lambda: not own(one, "orders") and not own(one, "half"), "the topics are removed", 90)
    assert f"Not served: {one.name('half')} was deleted" in one.logs(1 << 20)
    still_served(one, "other")
    for worker in workers:
        assert worker.running, one.logs()
        worker.stop()
    kept = {file.name for file in one.directory.glob("data-[23]/**/*.rocksdb")}
    assert any(one.name("other") in name for name in kept), kept
    assert not [name for name in kept if one.name("orders") in name], "their copies are removed at every worker"
    # They are in lapse.toml still: nothing makes them again but `lapse apply`, and that begins anew.
    checked = one.lapse("check")
    assert checked.returncode == 1
    assert "was deleted, this begins a new one" in checked.stdout
    assert own(one, "orders") == set()
    one.write("orders", "first of the new life")
    one.apply()
    one.worker().wait_for_shards(5)
    until(lambda: one.depth("orders")["available"] == 1, "the queue begins at its recovery point")


@pytest.mark.feature("C4")
def test_a_changelog_that_disappears_while_it_is_looked_at_is_looked_for_again(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker brings a deletion to its end while another one, that starts, is about to read the changelog."""
    one = deploy({"orders": {}, "other": {}}).apply()
    admin = AdminClient({"bootstrap.servers": one.servers})
    name = one.name("orders")

    def remove(*gone: str) -> None:
        for future in admin.delete_topics(list(gone)).values():
            future.result()
        until(lambda: not own(one, "orders") & set(gone), "the topics are removed")

    remove(topic.commands(name))
    look, looks = Cluster._look, []

    def look_and_lose(cluster: Cluster, *how: Any) -> Topology:
        looks.append(look(cluster, *how))
        if len(looks) == 1:
            remove(*own(one, "orders"))
        return looks[-1]

    monkeypatch.setattr(Cluster, "_look", look_and_lose)
    found = Cluster(load(one.config)).topology()
    assert looks[0].standing(name) is Standing.PARTLY
    assert found.standing(name) is Standing.DELETED
    assert found.standing(one.name("other")) is Standing.WHOLE


@pytest.mark.feature("C4", "C52")
def test_a_deletion_that_two_workers_finish_at_once_leaves_no_entity_that_lacks_something(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One removes the topics, and for the other the broker lists them still; the changelog is the last to be seen."""
    one = deploy({"orders": {}, "half": {}}).apply()
    config, name = load(one.config), one.name("half")
    changelog = topic.changelog(config.lapse.app_id, name)
    monkeypatch.setattr(
        InterruptedRemovals, "_is_retired", lambda _, who, existing: who == name and changelog in existing
    )
    admin = AdminClient({"bootstrap.servers": one.servers})
    admin.delete_topics([topic.commands(name)])[topic.commands(name)].result()
    until(lambda: topic.commands(name) not in own(one, "half"), "it is removed")
    look, remove, looks, seen = Cluster._look, topic_removal.remove_topics, [], []

    def look_again(cluster: Cluster, *how: Any) -> Topology:
        looks.append(look(cluster, *how))
        return looks[0] if len(looks) == 2 else looks[-1]

    def remove_in_any_order(by: AdminClient, topics: list[str], refused: str) -> None:
        for gone in reversed(topics):
            remove(by, [gone], refused)
            seen.append(look(Cluster(config), True, 15.0, True))

    monkeypatch.setattr(Cluster, "_look", look_again)
    monkeypatch.setattr(topic_removal, "remove_topics", remove_in_any_order)
    found = Cluster(config).topology(served=True)
    assert found.standing(name) is Standing.DELETED
    assert found.deleted() == [name]
    between = [then.existing for then in seen if then.standing(name) is Standing.PARTLY]
    assert between
    assert all(changelog in existing for existing in between)


@pytest.mark.feature("C4", "C65")
def test_an_entity_that_is_created_while_a_broker_still_lists_its_changelog_gets_a_new_one(deploy: Deploy) -> None:
    """Without it no worker would ever serve the entity, and `create_queue` had said that all is well."""
    one = deploy({"orders": {"partitions": 2}})
    cluster, changelog = Cluster(load(one.config)), topic.changelog(one.app_id, one.name("orders"))
    listed = [each for each in cluster.topology().wanted() if each.name != changelog]
    cluster.create(listed)
    assert changelog in own(one, "orders")
    assert one.lapse("check").returncode == 0, "with as many partitions as the others"


@pytest.mark.feature("C77", "C4")
def test_a_forced_deletion_takes_along_what_the_log_held_when_it_was_decided(deploy: Deploy) -> None:
    """The worker is frozen while messages and command are written, so it has read none of them when it decides."""
    one = deploy({"orders": {"dead_letter_reasons": ["purged"]}}, session_timeout="30s").apply()
    worker = one.worker().wait_for_shards(1)
    values = [str(number) for number in range(200)]
    worker.signal(signal.SIGSTOP)
    try:
        one.write("orders", *values)
        with ThreadPoolExecutor(1) as threads:
            deleted = threads.submit(lapse, one, "queue", "delete", one.name("orders"), "--force", "--yes", "--json")
            commands = one.tail(topic.commands(one.name("orders")))
            commands.wait_for(lambda seen: any(b"delete" in (each.value() or b"") for each in seen), "the command")
            worker.signal(signal.SIGCONT)
            done = deleted.result()
    finally:
        worker.signal(signal.SIGCONT)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["available"] == len(values)
    letters = one.letters("orders", len(values))
    assert sorted(str(int(letter.value() or b"")) for letter in letters) == sorted(values)
    assert {dict(letter.headers() or [])["lapse-reasons"] for letter in letters} == {Reason.PURGED.encode()}


@pytest.mark.feature("D3", "C4")
def test_a_deleted_queue_stays_until_its_letters_are_written(deploy: Deploy) -> None:
    one = deploy({"orders": {"expiration": "enabled"}}).apply()
    one.worker().wait_for_shards(1)
    admin, letters = AdminClient({"bootstrap.servers": one.servers}), topic.dead_letters(one.name("orders"))
    admin.delete_topics([letters])[letters].result(15)
    one.write("orders", "late", headers=[("lapse-ttl-ms", b"1")])
    until(lambda: one.depth("orders")["dying"] == 1, "its letter is refused")
    client = Queue(one.name("orders"), connection=one.connection, timeout_s=6)
    with client as queue, pytest.raises(LapseError, match="While dead letters cannot be written, it waits for that"):
        queue.delete(force=True)
    create(admin, NewTopic(letters, 1, 1))
    assert [letter.value() for letter in one.letters("orders", 1)] == [b"late"]
    until(lambda: not own(one, "orders"), "then the topics are removed", 40)

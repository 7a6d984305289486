"""Users and entitlements on a real broker: who may do what, who gets what, and on which topic (X4)."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from lapse.core.error_code import ErrorCode
from lapse.core.shard.retirement import ShardMessage, ShardMessageKind
from lapse.protocol import packed_delivery, signature, topic
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse_client import CommandFailed, LapseError, Publisher, Queue, QueueSubscriber, SowClient, history
from lapse_client.kafka.clock import ClientClock
from lapse_client.kafka.connection import Connection
from support.kafka.log import Tail, header, texts, until, write
from support.processes import fork_server
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.processes.entitled import Entitled

pytestmark = pytest.mark.feature("X4")

QUEUES = {
    "orders": {"ordering": "total", "barrier": "/type = 'EOD'", "partitions": 2},
    "plain": {"expiration": "enabled", "lease_period": "60s"},
    "wide": {"partitions": 2},
    "taken": {},
    "told": {},
    "copied": {},
    "guessed": {},
    "hidden": {"expiration": "enabled", "lease_period": "60s", "leasing": "strict"},
}
SOW = {"quotes": {}}
SHARDS = 1 + 1 + 1 + 2 + 1 + 1 + 1 + 1 + 1
USERS = {
    "alice": {"entitlements": {".*": {"read": True, "publish": True, "filter": "/desk = 'A'"}}},
    "bob": {"entitlements": {".*": {"read": True, "filter": "/desk = 'B'"}}},
    "ops": {"entitlements": {".*": {"read": True, "admin": True}}},
    "carol": {"entitlements": {".*": {"read": True}}},
    "guest": {"entitlements": {"elsewhere": {"read": True}}},
}


@pytest.fixture(scope="module")
def office(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entitled]:
    """A deployment with three users who may read, one who may administrate, and one who may nothing; one worker."""
    deployment = Entitled(kafka, tmp_path_factory.mktemp("office"), {})
    deployment.users = USERS
    deployment.configure(QUEUES, SOW, session_timeout="3s")
    deployment.apply().worker().wait_for_shards(SHARDS)
    yield deployment
    deployment.close()


def trade(desk: str, **more: object) -> bytes:
    return orjson.dumps({"desk": desk, **more})


def values(deliveries: list) -> list[dict]:
    return [orjson.loads(delivery.value) for delivery in deliveries if delivery is not None]


def handed_out(record: Message) -> list[bytes]:
    """The values that a record of a deliveries topic hands out."""
    if header(record, "lapse-kind") != packed_delivery.KIND:
        return [record.value() or b""]
    packed = packed_delivery.decode(record.value() or b"")
    return [packed.value(at) or b"" for at in range(len(packed))]


def taken(subscriber, count: int, timeout_s: float = 60) -> list:
    """So many deliveries."""
    found: list = []
    until(lambda: found.append(subscriber.receive(0.2)) or len([x for x in found if x]) >= count, f"{count}", timeout_s)
    return [one for one in found if one]


@pytest.mark.feature("Q5", "Q14", "X9")
def test_two_users_share_a_queue_and_neither_gets_nor_reads_what_is_the_others(office: Entitled) -> None:
    name = office.name("plain")
    with (
        office.subscriber_of("alice", "plain", name="same") as alice,
        office.subscriber_of("bob", "plain", name="same", payload="inline") as bob,
    ):
        with Publisher(office.as_user("alice")) as publisher:
            for number in range(6):
                publisher.publish(name, trade("AB"[number % 2], n=number))
        first, second = taken(alice, 3), taken(bob, 3)
        assert [one["n"] for one in values(first)] == [0, 2, 4]
        assert [one["n"] for one in values(second)] == [1, 3, 5]
        with alice.transaction(first) as tx:
            tx.produce(office.name("told"), trade("A"))
        for delivery in second:
            delivery.acknowledge()
        bob.flush()
        with office.queue_of("ops", "plain") as ops:
            until(lambda: ops.depth()["depth"] == 0, "all are done")
    topics = {user: office.tail(topic.deliveries(name, user)) for user in ("alice", "bob", "")}
    received = {user: tail.drain() for user, tail in topics.items()}
    for user, desk in (("alice", "A"), ("bob", "B")):
        delivered = [one for one in received[user] if header(one, "lapse-kind") in (b"delivery", packed_delivery.KIND)]
        assert [orjson.loads(value)["desk"] for one in delivered for value in handed_out(one)] == [desk] * 3
        assert {texts(one)["lapse-subscription"] for one in delivered} == {"same"}
    assert {header(one, "lapse-kind") for one in received[""]} == {b"epoch"}


@pytest.mark.feature("Q12", "Q17")
def test_a_barrier_holds_everybody_back_and_goes_to_those_who_may_see_it(office: Entitled) -> None:
    orders = office.name("orders")
    with (
        office.subscriber_of("alice", "orders", 5) as alice,
        office.subscriber_of("bob", "orders", 5) as bob,
    ):
        for body in (trade("A", n=1), trade("A", type="EOD"), trade("B", n=2)):
            write(office.servers, orders, [body])
        (first,) = taken(alice, 1)
        assert bob.receive(0.5) is None, "what is behind the barrier waits, also for who will never see it"
        first.acknowledge()
        (barrier,) = taken(alice, 1)
        assert barrier.is_barrier
        assert values(taken(bob, 1)) == [{"desk": "B", "n": 2}]
        assert alice.receive(0.3) is None
    (released,) = office.awaited("orders", "barrier_released")
    assert released.detail == f"alice/{alice.name}"


@pytest.mark.feature("Q8", "Q15")
def test_looking_and_settling_go_as_far_as_the_entitlement(office: Entitled) -> None:
    written = write(office.servers, office.name("taken"), [trade("AB"[number % 2], n=number) for number in range(6)])
    marks = [office.bookmark("taken", one) for one in written]
    with office.queue_of("alice", "taken") as alice, office.queue_of("bob", "taken") as bob:
        until(lambda: bob.depth()["depth"] == 3, "three are bob's")
        assert [shown.bookmark for shown in alice.peek()] == marks[0::2]
        assert [shown.bookmark for shown in alice.peek(filter="/n > 1")] == marks[2::2]
        assert alice.peek(filter="/desk = 'B'") == []
        assert [one.result for one in alice.acknowledge([marks[1], marks[3]])] == ["unknown", "unknown"]
        assert [one.result for one in alice.acknowledge([marks[0]])] == ["settled"]
        alice.expire(filter="TRUE")
        assert (alice.depth()["depth"], bob.depth()["depth"]) == (0, 3)
        assert "oldest_age_ms" not in bob.depth(), "it would tell of others' messages"
    with office.queue_of("ops", "taken") as ops:
        assert ops.depth()["depth"] == 3
        with office.subscriber_of("bob", "taken", 1) as bob_s:
            (held,) = taken(bob_s, 1)
            (shown,) = ops.peek(filter="/n = 1")
            assert shown.subscription == f"bob/{bob_s.name}"
            held.acknowledge()


def answers(client: Queue, command: str, *bookmarks: str) -> list[str]:
    """What a command that settles is answered, bookmark by bookmark."""
    asked = Command(command=command, subscription="s", bookmarks=bookmarks)
    (answer,) = client._ask(asked)
    return [settlement.result for settlement in answer.settlements for _ in BookmarkRange.parse(settlement.bookmarks)]


@pytest.mark.feature("L5", "Q8", "C16", "C17", "C82", "Q15")
def test_a_message_that_a_user_may_not_see_answers_as_one_that_never_was(office: Entitled) -> None:
    """Every command that settles, on messages of another in every state, one by one and as a range."""
    name = office.name("hidden")
    in_a_minute = [("lapse-enqueue-at-ms", str(broker_now_ms() + 60_000).encode())]
    short = [("lapse-ttl-ms", b"1")]
    with office.subscriber_of("bob", "hidden", 2) as bob, office.queue_of("ops", "hidden") as ops:
        states = {}
        for state, headers in {"leased": [], "delayed": [], "scheduled": in_a_minute, "expired": short}.items():
            (written,) = write(office.servers, name, [trade("B")], headers=headers)
            states[state] = office.bookmark("hidden", written)
        leased, delayed = taken(bob, 2)
        delayed.cancel(delay_ms=60_000)
        bob.flush()
        (written,) = write(office.servers, name, [trade("B")])
        states["settled"] = office.bookmark("hidden", written)
        taken(bob, 1)[0].acknowledge()
        bob.flush()
        dead = write(office.servers, name, [trade("B")], headers=[("lapse-ttl-ms", b"never")])
        states["dead on arrival"] = office.bookmark("hidden", dead[0])
        (own,) = write(office.servers, name, [trade("A")], headers=in_a_minute)
        until(lambda: ops.depth()["scheduled"] == 2, "all arrived")
        never = f"{name}:0:{own.offset + 1_000}"
        with office.queue_of("alice", "hidden") as alice, office.queue_of("bob", "hidden") as owner:
            for command in ("acknowledge", "cancel", "expire", "renew"):
                (expected,) = answers(alice, command, never)
                found = {state: answers(alice, command, bookmark) for state, bookmark in states.items()}
                assert found == {state: [expected] for state in states}, command
                first, last = states["leased"].rpartition(":")[2], states["dead on arrival"].rpartition(":")[2]
                whole = f"{name}:0:{first}-{last}"
                assert set(answers(alice, command, whole)) == {expected}, command
                asked = Command(command=command, subscription="s", bookmarks=(whole,))
                (answer,) = alice._ask(asked)
                assert [one.bookmarks for one in answer.settlements] == [whole], "its parts would tell which there are"
            for user, one in ((alice, office.bookmark("hidden", own)), (owner, states["scheduled"])):
                assert user.depth()["scheduled"] == 1, "their own is counted, and seen"
                assert [shown.bookmark for shown in user.peek() if shown.state == "scheduled"] == [one]
            assert answers(owner, "renew", states["settled"]) == ["already_settled"], "theirs, so they are told"
            assert answers(owner, "acknowledge", states["scheduled"]) == ["scheduled"]
            assert answers(alice, "cancel", office.bookmark("hidden", own)) == ["settled"], "withdrawn, as by anybody"
            assert answers(owner, "cancel", states["scheduled"]) == ["settled"]
        leased.acknowledge()


REPLICATED = [("lapse-origin", b"there"), ("lapse-origin-timestamp-ms", b"1")]


@pytest.mark.feature("S5", "S6", "S7", "S3", "S10")
def test_a_sow_topic_shows_and_hides_records_by_user(office: Entitled) -> None:
    quotes = office.name("quotes")
    for key, desk in (("1", "A"), ("2", "B"), ("3", "A")):
        write(office.servers, quotes, [trade(desk)], key=key.encode(), headers=REPLICATED)
    with office.sow_of("alice", "quotes") as alice, office.sow_of("bob", "quotes") as bob:
        until(lambda: len(list(alice.query())) == 2, "two are alice's")
        assert {one.key for one in alice.query()} == {b"1", b"3"}
        assert list(alice.query("/desk = 'B'")) == []
        assert [one.key for one in bob.query("TRUE")] == [b"2"]
        with alice.sow_and_subscribe() as seen, bob.subscribe() as others:
            found = list(seen.updates(1))
            assert {one.key for one in found if one.key} == {b"1", b"3"}
            write(office.servers, quotes, [trade("B", moved=True)], key=b"1")
            (gone,) = seen.updates(1)
            assert (gone.kind, gone.operation) == ("oof", "no_longer_matches")
            assert orjson.loads(gone.value) == {"desk": "A"}, "what she saw last, not what is hidden now"
            (came,) = others.updates(1)
            assert orjson.loads(came.value) == {"desk": "B", "moved": True}
        assert alice.delete(filter="TRUE") == 1
        with pytest.raises(CommandFailed, match=f"SOW topic {quotes}: sow_delete takes the entitlement publish; bob"):
            bob.delete(filter="TRUE")
    with office.sow_of("ops", "quotes") as ops:
        assert {one.key for one in ops.query()} == {b"1", b"2"}


@pytest.mark.feature("C82", "L5", "S3")
def test_scheduled_updates_are_withdrawn_by_those_who_may_see_them(office: Entitled) -> None:
    quotes = office.name("quotes")
    in_an_hour = [("lapse-enqueue-at-ms", str(broker_now_ms() + 3_600_000).encode())]
    own, other = (write(office.servers, quotes, [trade(desk)], key=b"9", headers=in_an_hour)[0] for desk in "AB")
    with office.sow_of("alice", "quotes") as alice:
        both = [office.bookmark("quotes", one) for one in (own, other)]
        assert alice.delete(bookmarks=both[1:]) == 0
        assert alice.delete(bookmarks=both) == 1
        assert alice.delete(bookmarks=both) == 0, "the other one is as if never there"


@pytest.mark.feature("X7", "Q21", "C4", "Q17", "Q22")
def test_what_takes_an_administrator_is_refused_to_others(office: Entitled) -> None:
    name = office.name("wide")
    for partition in (0, 1):
        write(office.servers, name, [trade("A")], partition=partition)
    with office.queue_of("alice", "wide") as alice:
        hold = Command(command="transfer", transfer="tom", to="there", top_n=1, bookmarks=(f"{name}:0:0",))
        for refused in (
            *(alice.pause, alice.resume, alice.purge, lambda: alice.delete(force=True)),
            *(lambda: alice.rewind("beginning"), lambda: alice._ask(hold)),
        ):
            with pytest.raises(CommandFailed, match=rf"queue {name}: \w+ takes the entitlement admin; alice has"):
                refused()
    forged = ShardMessage(kind=ShardMessageKind.DECIDED, id=1 << 50, sender=0, to=1, force=True)
    write(office.servers, topic.commands(name), [forged.encode()], key=SHARD_MESSAGE_KEY, partition=1)
    with office.queue_of("ops", "wide") as ops:
        until(lambda: ops.depth()["depth"] == 2, "nothing happened")
        ops.pause()
        ops.resume()
        assert ops.purge().items() >= {"removed": 2, "skipped": 0}.items()
        assert f"{name}, offset" in office.workers[0].text, "the log tells of the word that nobody sealed"
        assert topic.deliveries(name, "bob") in AdminClient({"bootstrap.servers": office.servers}).list_topics().topics
        ops.delete()
    left = AdminClient({"bootstrap.servers": office.servers}).list_topics().topics
    assert [one for one in left if one.startswith(f"lapse.{name}.")] == [], "private topics go with the others"


@pytest.mark.feature("X7")
def test_who_is_not_who_they_say_is_refused_and_does_nothing(office: Entitled) -> None:
    name = office.name("told")
    write(office.servers, name, [trade("A")])
    with office.queue_of("ops", "told") as ops:
        before = ops.depth()["depth"]
    assert before
    wrong = Queue(name, connection=office.as_user("alice", "not the secret key of alice"))
    with wrong, pytest.raises(CommandFailed, match=f"queue {name}: the signature is not alice's"):
        wrong.depth()
    with office.queue("told") as nobody, pytest.raises(CommandFailed, match=f"queue {name}: the command bears no user"):
        nobody.purge()
    with pytest.raises(LapseError, match=f"no topic {topic.deliveries(name, 'guest')}"):
        office.queue_of("guest", "told").start()
    with pytest.raises(CommandFailed, match="the command bears no user"):
        office.subscriber("told").start()

    tail = office.tail(topic.deliveries(name), from_end=True)
    body = orjson.dumps({"command": "purge", "id": "eve"})
    write(office.servers, topic.commands(name), [body], headers=[("lapse-user", b"eve")])
    answered(tail, "eve", "there is no user 'eve'")
    with office.queue_of("ops", "told") as ops:
        assert ops.depth()["depth"] == before


def answered(tail: Tail, ident: str, text: str) -> None:
    def found() -> list[Message]:
        return [one for one in tail.records if header(one, "lapse-command-id") == ident.encode()]

    tail.wait_for(lambda _: found(), f"the answer to {ident}")
    assert text in orjson.loads(found()[-1].value() or b"")["error"]


@pytest.mark.feature("C1", "X2")
def test_changed_keys_are_in_force_without_a_restart(office: Entitled) -> None:
    """A new key beside the old one, then alone; a file without a good key changes nothing."""
    old, new = office.secret("carol"), "another key of carol's, which is long enough"

    def may(secret: str) -> bool:
        with Queue(office.name("plain"), connection=office.as_user("carol", secret)) as queue:
            try:
                return "depth" in queue.depth()
            except CommandFailed:
                return False

    assert may(old)
    assert not may(new)
    file, of_workers = office.directory / "carol.key", office.directory / "worker.key"
    of_workers.write_text(f"the next key of the workers\n{of_workers.read_text()}")
    file.write_text(f"{new}\n{old}\n")
    until(lambda: may(new), "the new key is known")
    assert may(old)
    file.write_text(f"{new}\n")
    until(lambda: not may(old), "the old key is unknown")
    file.write_text("short\n")
    worker = office.workers[-1]
    until(lambda: "stay in force: users.carol" in worker.text, "it is told")
    assert may(new)
    file.write_text(f"{old}\n")
    until(lambda: may(old), "as before")
    assert "Changed keys are in force: those of user carol" in worker.text
    assert new not in worker.text


def test_a_copied_command_does_nothing_elsewhere_later_or_at_the_next_worker(office: Entitled) -> None:
    """Signed with openssl and sent by a plain producer, as a shell would; then copied, byte by byte."""
    name, other = office.name("copied"), office.name("plain")
    commands = topic.commands(name)
    body = orjson.dumps({"command": "purge", "id": "once"})
    now_ms = time.time_ns() // 1_000_000
    text = f"lapse-1\nops\n{commands}\n0\n{now_ms}\n".encode() + body
    made = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", office.secret("ops"), "-r"], input=text, capture_output=True, check=True
    )
    digits = made.stdout.split()[0]
    headers = [("lapse-user", b"ops"), ("lapse-signed-at-ms", b"%d" % now_ms), ("lapse-signature", digits)]
    tail = office.tail(topic.deliveries(name, "ops"), from_end=True)
    elsewhere = office.tail(topic.deliveries(other, "ops"), from_end=True)

    def emitted(some: Tail) -> list[dict]:
        return [orjson.loads(one.value() or b"") for one in some.poll() if header(one, "lapse-kind") == b"answer"]

    def send(to: str = commands) -> None:
        write(office.servers, to, [body], headers=headers)

    send()
    until(lambda: [one["status"] for one in emitted(tail)] == ["ok"], "the first one counts")
    write(office.servers, name, [trade("A")])
    send()
    until(lambda: len(emitted(tail)) == 2, "an answer")
    assert f"queue {name}: this command was sent before" in emitted(tail)[1]["error"]
    send(topic.commands(other))
    until(lambda: emitted(elsewhere), "an answer elsewhere")
    assert "the signature is not ops's" in emitted(elsewhere)[0]["error"]
    early = signature.headers(office.secret("ops").encode(), "ops", commands, 0, now_ms - 130_000, body)
    write(office.servers, commands, [body], headers=early)
    until(lambda: len(emitted(tail)) == 3, "an answer")
    assert "was signed 13" in emitted(tail)[2]["error"]

    office.workers[0].kill()
    office.workers[0].start().wait_for_shards(SHARDS - 2, 60)
    said = len(emitted(tail))
    send()
    until(lambda: len(emitted(tail)) > said, "the next worker's answer")
    tail.drain()
    assert "this command was sent before" in emitted(tail)[-1]["error"]
    assert [one["status"] for one in emitted(tail)].count("ok") == 1
    with office.queue_of("ops", "copied") as ops:
        assert ops.depth()["depth"] == 1


@pytest.mark.feature("D6")
def test_a_life_is_reported_from_private_topics_as_well(office: Entitled) -> None:
    with office.subscriber_of("bob", "told", 1) as bob:
        write(office.servers, office.name("told"), [trade("B")])
        (delivery,) = taken(bob, 1)
    published = history(delivery.bookmark, connection=Connection(office.servers))
    (moment,) = [one for one in published.moments if one.what == "delivered"]
    assert moment.facts["subscription"] == bob.name


@pytest.mark.feature("X5")
def test_the_command_line_signs_with_a_key_from_a_file_that_nobody_sees(office: Entitled) -> None:
    key = office.directory / "alice.key"
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": office.servers, "LAPSE_USER": "alice"}

    def lapse(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return fork_server.run(["-m", "lapse", *arguments], {**environment, **more})

    done = lapse("queue", "depth", office.name("plain"), "--json", LAPSE_SECRET_FILE=str(key))
    assert done.returncode == 0, done.stderr
    assert orjson.loads(done.stdout)["depth"] == 0
    refused = lapse("queue", "pause", office.name("plain"), LAPSE_SECRET_FILE=str(key))
    assert refused.returncode == 1
    assert "pause takes the entitlement admin; alice has publish, read" in refused.stderr
    assert "Traceback" not in refused.stderr
    missing = lapse("queue", "depth", office.name("plain"))
    assert (missing.returncode, "secret of user alice holds no key" in missing.stderr) == (1, True), missing.stderr
    secrets = [office.secret(user).encode() for user in USERS]
    logs = b"".join(file.read_bytes() for file in Path(office.directory).glob("*.log"))
    assert b"Users are configured (alice, bob, carol, guest, ops): commands have to be signed" in logs
    assert [one for one in secrets if one in logs] == []


def test_off_without_users_and_the_log_says_so(deploy: Deploy) -> None:
    deployment: Deployment = deploy({"open": {}}).apply()
    worker = deployment.worker().wait_for_shards(1)
    assert worker.text.count("No users are configured: whoever can write to a commands topic may do everything") == 1
    assert deployment.depth("open")["depth"] == 0


@pytest.mark.feature("C3")
@pytest.mark.parametrize("ahead_s", [-3_600, 3_600])
def test_a_client_whose_clock_is_wrong_signs_by_the_brokers(office: Entitled, ahead_s: int) -> None:
    """The first command can only be signed by the wall clock. It is refused, and measures the broker's clock."""

    def connection() -> Connection:
        wrong = office.as_user("alice")
        wrong.__dict__["clock"] = ClientClock(lambda: time.time() + ahead_s)
        return wrong

    shared = connection()
    with QueueSubscriber(office.name("guessed"), 4, connection=shared) as alice:
        office.write("guessed", trade("A", n=ahead_s))
        (delivery,) = taken(alice, 1)
        assert [result.settled for result in alice.settle("acknowledge", [delivery], wait=True)] == [True]
    assert shared.clock.now_ms() == pytest.approx(broker_now_ms(), abs=60_000)
    with SowClient(office.name("quotes"), connection=connection()) as quotes:
        assert list(quotes.query("/n = 1")) == []
        with quotes.subscribe():
            """It is confirmed: the session shares the clock that the query has measured."""
    with Queue(office.name("guessed"), connection=connection()) as queue, pytest.raises(CommandFailed) as refused:
        queue.pause()
    assert refused.value.code == ErrorCode.FORBIDDEN, "it is refused for what it is, not for when it was signed"

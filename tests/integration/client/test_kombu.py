"""Celery, and programs with kombu, on queues of lapse: as brokers of theirs behave, and over crashes (X3)."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import kombu
import pytest
from kombu.asynchronous.hub import Hub
from kombu.common import Broadcast

import lapse_kombu
from lapse_client import Connection, ConnectionFailed, DeadLetterReader, LapseError, Publisher, Queue
from support.kafka.log import until
from support.processes.deployment import Deployment

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def here(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment whose worker creates what kombu declares."""
    one = Deployment(kafka, tmp_path_factory.mktemp("kombu"), {"plain": {}}, definitions="topic")
    one.apply().worker().wait_for_shards(1)
    yield one
    one.close()


@pytest.fixture
def connection(here: Deployment) -> Iterator[kombu.Connection]:
    """Kombu's connection to it."""
    options = {"deployment": here.app_id, "visibility_timeout": 2}
    with kombu.Connection(f"lapse://{here.servers}", transport_options=options) as one:
        yield one


def drain(connection: kombu.Connection, queue: kombu.Queue, count: int, settle: str = "ack") -> list[Any]:
    """Receive so many messages, settle each, and tell bodies."""
    found: list[Any] = []

    def take(body: Any, message: Any) -> None:
        found.append(body)
        getattr(message, settle)()

    with kombu.Consumer(connection, [queue], callbacks=[take]):
        until_s = time.monotonic() + 20
        while len(found) < count and time.monotonic() < until_s:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=1)
    return found


@pytest.mark.feature("X3", "Q5", "Q8")
def test_messages_are_published_consumed_rejected_and_requeued(here: Deployment, connection: kombu.Connection) -> None:
    queue = kombu.Queue(here.name("plain"), routing_key=here.name("plain"))
    producer = connection.Producer()
    for number in range(3):
        producer.publish({"n": number}, routing_key=queue.name, declare=[queue], headers={"k": "v"})
    assert drain(connection, queue, 1, "requeue")[0] == {"n": 0}
    assert sorted(one["n"] for one in drain(connection, queue, 3)) == [0, 1, 2]
    until(lambda: here.depth("plain")["depth"] == 0, "all are acknowledged")
    assert connection.default_channel.basic_get(queue.name) is None
    producer.publish({"n": 3}, routing_key=queue.name)
    message = connection.default_channel.basic_get(queue.name)
    assert (message.payload, message.headers) == ({"n": 3}, {})
    message.reject()
    (letter,) = here.letters("plain", 1)
    assert b"forced_expire" in dict(letter.headers())["lapse-reasons"]
    here.write("plain", "no message of kombu")
    producer.publish({"n": 4}, routing_key=queue.name)
    assert drain(connection, queue, 1) == [{"n": 4}]
    assert here.letters("plain", 2)[1].value() == b"no message of kombu"


@pytest.mark.feature("X3", "X7")
def test_queues_whose_names_no_topic_can_have_are_two(here: Deployment, connection: kombu.Connection) -> None:
    slash, colon = (kombu.Queue(f"{here.name('plain')}{sign}x", routing_key=sign) for sign in "/:")
    producer = connection.Producer()
    for queue in (slash, colon):
        producer.publish({"for": queue.name}, routing_key=queue.name, declare=[queue])
    assert drain(connection, colon, 1) == [{"for": colon.name}]
    assert drain(connection, slash, 1) == [{"for": slash.name}]


HOSTILE = (
    b"[" * 100_000,
    b'{"properties": {"delivery_info": "x"}, "body": ""}',
    b'{"properties": {"delivery_info": []}, "body": "", "headers": 5}',
    b'{"properties": {"body_encoding": "nope"}, "body": "a"}',
    b'{"properties": {"body_encoding": {}}, "body": "a"}',
    b'{"properties": {}, "body": {"__type__": "datetime", "__value__": 5}}',
    b'{"__type__": "decimal", "__value__": "x"}',
    b'{"properties": {}, "body": null}',
    b'{"properties": {}, "body": 1}',
    b'{"properties": {}, "body": "", "headers": []}',
    b'{"properties": {}, "body": "", "content-type": 7}',
)
"""What kombu itself, or Celery's worker, would stumble over."""


@pytest.mark.feature("X3", "X7")
def test_no_record_ends_a_consumer(here: Deployment, connection: kombu.Connection) -> None:
    """Neither on a queue's topic nor on the one that all transient queues read."""
    name = here.name("hostile")
    queue = kombu.Queue(name, routing_key=name)
    listening = kombu.Queue(here.name("ear"), kombu.Exchange(here.name("air"), "fanout"), auto_delete=True)
    listening(connection.default_channel).declare()
    queue(connection.default_channel).declare()
    unread = f'{{"properties": {{"delivery_info": {{"exchange": "{here.name("air")}"}}}}, "body": "x"}}'.encode()
    with Publisher(Connection(here.servers)) as publisher:
        for value in HOSTILE:
            publisher.publish(name, value)
        for value in (*HOSTILE, unread):
            publisher.publish(f"kombu.{here.app_id}", value)
    connection.Producer().publish("a task", routing_key=name)
    connection.Producer().publish("news", exchange=here.name("air"))
    assert drain(connection, queue, 1) == ["a task"]
    assert drain(connection, listening, 1) == ["news"]
    with Queue(name, connection=Connection(here.servers)) as asked:
        until(lambda: asked.depth()["depth"] == 0, "all have left")
    letters = [letter.value for letter in DeadLetterReader(name, connection=Connection(here.servers))]
    assert sorted(letters) == sorted(HOSTILE)


@pytest.mark.feature("X3", "L2", "Q13", "Q23")
def test_a_declared_queue_is_created_with_what_kombu_says_of_it(here: Deployment, connection: kombu.Connection) -> None:
    name = here.name("ranked")
    queue = kombu.Queue(name, routing_key=name, max_priority=9, message_ttl=600)
    producer = connection.Producer()
    with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
        kombu.Queue(name)(connection.default_channel).queue_declare(passive=True)
    own = kombu.Queue(here.name("own"), auto_delete=True)  # bound by its own name, as that of `rpc://` for results
    own(connection.default_channel).declare()
    for text, priority in (("first", 3), ("second", 6), ("third", 3)):
        producer.publish(text, routing_key=name, declare=[queue], priority=priority)
    assert own.name in connection.transport.queues(), "before anything is sent that is answered there"
    producer.publish("late", routing_key=name, priority=9, expiration=0.05)
    until(lambda: queue(connection.default_channel).queue_declare(passive=True).message_count == 3, "one expires")
    assert drain(connection, queue, 3) == ["second", "first", "third"]
    assert queue(connection.default_channel).purge() == 0
    queue(connection.default_channel).delete()
    assert name not in connection.transport.queues()


@pytest.mark.feature("X3")
def test_a_connection_is_opened_again_and_goes_on_at_another_address(
    here: Deployment, connection: kombu.Connection
) -> None:
    connection.connect()
    connection.close()
    assert connection.connection is None
    result, channel = connection.autoretry(lambda value, channel: value, max_retries=0)("done")
    assert (result, channel) == ("done", connection.default_channel)
    with kombu.Connection(f"lapse://127.0.0.1:1;lapse://{here.servers}", connect_timeout=5) as moved:
        moved.connect()
        assert str(moved.port) == here.servers.rpartition(":")[2]


@pytest.mark.feature("X3")
def test_exchanges_route_by_their_keys(here: Deployment, connection: kombu.Connection) -> None:
    """Durable queues get what the bindings of their connection name; what is bound to nothing is dropped."""
    direct, topic = kombu.Exchange(here.name("direct"), "direct"), kombu.Exchange(here.name("topic"), "topic")
    fanout = kombu.Exchange(here.name("fanout"), "fanout")
    one, two = (
        kombu.Queue(here.name(f"routed-{name}"), direct, name)(connection.default_channel) for name in ("one", "two")
    )
    for queue in (one, two):
        queue.declare()
        for exchange in (topic, fanout):
            exchange(connection.default_channel).declare()
    one.bind_to(topic, "t.*")
    two.bind_to(topic, "t.#")
    one.bind_to(fanout)
    two.bind_to(fanout)
    producer = connection.Producer(on_return=print)
    sent = ((direct, "one"), (direct, "none"), (topic, "t.1"), (topic, "t.1.2"), (topic, "x"), (fanout, ""))
    for exchange, key in sent:
        producer.publish(f"{exchange.type} {key}", exchange=exchange, routing_key=key)
    producer.publish("to nobody", exchange=kombu.Exchange(here.name("unbound"), "topic"), routing_key="t.1")
    found = {queue.name: drain(connection, queue, count) for queue, count in ((one, 3), (two, 3))}
    assert found == {
        one.name: ["direct one", "topic t.1", "fanout "],
        two.name: ["topic t.1", "topic t.1.2", "fanout "],
    }
    assert (one.get(), two.get()) == (None, None)


@pytest.mark.feature("X3", "Q5", "Q7")
def test_what_another_thread_settles_makes_room_at_once(here: Deployment, connection: kombu.Connection) -> None:
    """As Celery's pool does it; another channel that listens, as for its remote control, must not be waited for."""
    name = here.name("plain")
    queue, other = kombu.Queue(name, routing_key=name), kombu.Exchange(here.name("control"), "fanout")
    listening = kombu.Queue(here.name("mine"), other, durable=False, auto_delete=True)
    for number in range(4):
        connection.Producer().publish(number, routing_key=name, declare=[queue])
    held: list[Any] = []
    with (
        connection.channel() as channel,
        connection.channel() as beside,
        kombu.Consumer(beside, [listening], callbacks=[print]),
    ):
        consumer = kombu.Consumer(channel, [queue], callbacks=[lambda body, message: held.append((body, message))])
        consumer.qos(prefetch_count=1)
        with consumer:
            for number in range(4):
                connection.drain_events(timeout=20)
                assert [body for body, _ in held] == [number], "one at a time"
                with pytest.raises(TimeoutError):
                    connection.drain_events(timeout=0)
                settling = threading.Timer(0.1, held.pop()[1].ack)
                settling.start()
            settling.join()
            consumer.qos(prefetch_count=3)  # as when Celery's pool grows
            for number in range(3):
                connection.Producer().publish(number, routing_key=name)
            while len(held) < 3:  # ends with Empty, if one of them may not be handed out
                channel.drain_events(timeout=20)
            for _, message in held:
                message.ack()
            with pytest.raises(Empty):
                channel.drain_events(timeout=0)


@pytest.mark.feature("X3")
def test_an_event_loop_hands_out_and_settles(here: Deployment, connection: kombu.Connection) -> None:
    """Kombu's hub, as Celery's worker runs it: what threads ask for is done in it, and it ends with the connection."""
    name = here.name("plain")
    queue, hub, done = kombu.Queue(name, routing_key=name), Hub(), list[int]()

    def settle(message: Any) -> None:
        message.ack()
        done.append(message.payload)

    def take(_: Any, message: Any) -> None:
        threading.Timer(0.05, hub.call_soon, (settle, message)).start()

    for number in range(3):
        connection.Producer().publish(number, routing_key=name, declare=[queue])
    consumer = kombu.Consumer(connection, [queue], callbacks=[take], prefetch_count=1)
    with consumer, contextlib.closing(hub):
        connection.register_with_event_loop(hub)
        until(lambda: hub.run_once() or len(done) == 3, "all are done")
        assert done == [0, 1, 2]
        connection.close()
        assert not hub.on_tick


@pytest.mark.feature("X3", "C4", "Q23")
def test_a_queue_that_is_deleted_under_its_consumer_is_declared_again(
    here: Deployment, connection: kombu.Connection
) -> None:
    """The consumer's connection ends with an error after which kombu and Celery begin anew, until there is a queue."""
    queue = kombu.Queue(here.name("deleted"), routing_key=here.name("deleted"))
    with contextlib.closing(connection.clone()) as first, kombu.Consumer(first, [queue]):
        here.lapse("queue", "delete", queue.name, "--force", "--yes")
        with pytest.raises(first.recoverable_connection_errors, match="is no more"):
            first.drain_events(timeout=20)

    def works_again() -> bool:
        with contextlib.closing(connection.clone()) as again, contextlib.suppress(*again.recoverable_connection_errors):
            again.Producer().publish("after", routing_key=queue.name, declare=[queue])
            return "after" in drain(again, queue, 1)
        return False

    until(works_again, "the queue is there again", 30)


@pytest.mark.feature("X3", "Q5", "Q6")
def test_leases_are_renewed_while_a_message_is_worked_on(here: Deployment, connection: kombu.Connection) -> None:
    """The queue's leases last two seconds here, and the work takes three. What waits behind it keeps its lease, too."""
    name = here.name("slow")
    queues = [kombu.Queue(here.name(stem), routing_key=here.name(stem)) for stem in ("slow", "patient", "odd")]
    held: list[Any] = []
    with connection.channel() as channel:

        def received(count: int) -> bool:
            with contextlib.suppress(TimeoutError):
                channel.connection.drain_events(channel.connection, timeout=1)
            return len(held) == count

        producer = channel.Producer()
        producer.publish("slow", routing_key=name, declare=queues)
        consumer = kombu.Consumer(channel, queues, callbacks=[lambda _, message: held.append(message)])
        consumer.qos(prefetch_count=1)
        with consumer:
            until(lambda: received(1), "received")
            producer.publish("patient", routing_key=here.name("patient"))
            with Publisher(Connection(here.servers)) as publisher:
                publisher.publish(here.name("odd"), b"null")
            for stem in ("patient", "odd"):
                with here.queue(stem) as waits:
                    until(lambda waits=waits: waits.depth()["leased"], "it waits at the consumer")
            time.sleep(3)
            with contextlib.closing(connection.clone()) as other:
                assert other.default_channel.basic_get(name) is None, "it is still ours"
            held[0].ack()
            until(lambda: received(2), "the next one's turn")
            assert not held[1].delivery_info["redelivered"]
            held[1].ack()
        assert not channel._leaving, "no lease is kept of what could not be read"
    with here.queue("slow") as slow:
        until(lambda: slow.depth()["depth"] == 0, "acknowledged")


@pytest.mark.feature("X3")
def test_what_is_sent_to_everybody_comes_to_all_who_listen_in_other_connections(
    here: Deployment, connection: kombu.Connection
) -> None:
    """Each through the binding that it has: of a fanout, a topic and a direct exchange; a queue's name is for one."""
    news = kombu.Exchange(here.name("news"), "fanout")
    weather = kombu.Exchange(here.name("weather"), "topic")
    replies = kombu.Exchange(here.name("replies"), "direct", durable=False)
    orders = Broadcast(here.name("orders"))  # as Celery has it: with a random name, and durable

    def listening(name: str, exchange: kombu.Exchange | None, key: str) -> kombu.Queue:
        return kombu.Queue(here.name(name), exchange, key, durable=False, auto_delete=True)

    north = listening("north", weather, "weather.north.#")
    first, second, mine = listening("one", news, ""), listening("two", news, ""), listening("mine", replies, "me")
    with contextlib.closing(connection.clone()) as other:
        for queue in (north, first, mine):
            queue(connection.default_channel).declare()
        second(other.default_channel).declare()
        orders(other.default_channel).declare()
        with contextlib.closing(connection.clone()) as away:
            producer = away.Producer()
            for exchange, key in ((news, ""), (replies, "you"), (replies, "me")):
                producer.publish(key or "all", exchange=exchange, routing_key=key, declare=[exchange])
            for key in ("weather.north.rain", "weather.south.rain"):
                producer.publish(key, exchange=weather, routing_key=key, declare=[weather], delivery_mode=1)
            producer.publish(
                "to all", exchange=here.name("orders"), routing_key="any"
            )  # declared by the listener alone
            producer.publish("nobody's", routing_key=here.name("gone"), delivery_mode=1)
            away.SimpleBuffer(here.name("shared")).put("one")
        assert other.SimpleBuffer(here.name("shared")).get(timeout=20).payload == "one"
        for queue, bodies in ((first, ["all"]), (mine, ["me"]), (north, ["weather.north.rain"])):
            assert drain(connection, queue, 1) == bodies
            assert queue(connection.default_channel).get() is None
        assert drain(other, second, 1) == ["all"]
        assert drain(other, orders, 1) == ["to all"]
    queues = connection.transport.queues()
    assert here.name("shared") in queues
    assert not {one.name for one in (first, second, mine, north, orders)} & {*queues}
    assert here.name("gone") not in queues


@pytest.mark.feature("X3", "X7")
def test_what_is_wrong_is_reported_at_once(here: Deployment) -> None:
    with pytest.raises(ConnectionFailed, match="Connection refused"):
        kombu.Connection("lapse://localhost:1", connect_timeout=2).connect()
    with (
        kombu.Connection(f"lapse://{here.servers}", transport_options={"deployment": "nobody"}) as connection,
        pytest.raises(LapseError, match=r"there is no queue 'nowhere'; add \[queue.nowhere\] to lapse.toml"),
    ):
        connection.Producer().publish("x", routing_key="nowhere", declare=[kombu.Queue("nowhere")])


@pytest.fixture
def celery(here: Deployment, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Runs a command of Celery, or a Python program, on the example's tasks."""
    begun: list[subprocess.Popen[bytes]] = []
    environment = {
        **os.environ,
        "KAFKA_BOOTSTRAP_SERVERS": here.servers,
        "LAPSE_DEPLOYMENT": here.app_id,
    }

    def begin(*arguments: str, log: str = "celery.log", queue: str = "shop") -> "subprocess.Popen[bytes]":
        with (tmp_path / log).open("ab") as out:
            begun.append(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=EXAMPLES,
                    env={**environment, "SHOP_QUEUE": here.name(queue)},
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
        return begun[-1]

    yield begin
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


@pytest.mark.feature("X3", "L2", "L5", "Q8")
def test_a_worker_of_celery_runs_tasks_and_another_takes_over_what_it_held(
    here: Deployment, celery: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    def said(what: str) -> int:
        return (tmp_path / "celery.log").read_text().count(what)

    def send(code: str) -> None:
        assert celery("-c", f"from celery_tasks import charge, pack; {code}", log="sent.log").wait(60) == 0

    worker = ("-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "2", "--loglevel", "info")
    first = celery(*worker)
    assert celery("celery_tasks.py").wait(60) == 0
    for order in (1, 3, 4):
        until(lambda order=order: said(f"packed order {order}"), f"order {order}", 60)
    assert not said("packing order 2"), "its time has not come"
    until(lambda: said("charged order 5"), "the third try", 30)
    assert said("charging order 5 failed") == 2
    until(lambda: said("packed order 2"), "its time has come", 30)
    send("pack.apply_async(['order 6'], {'seconds': 25})")
    until(lambda: said("packing order 6") == 1, "a long task begins", 30)
    send("pack.apply_async(['order 7'], countdown=60, expires=1)")
    os.killpg(first.pid, signal.SIGKILL)
    send("pack.delay('order 8')")
    celery(*worker)
    until(lambda: said("packed order 8"), "another one works", 60)
    until(lambda: said("packing order 6") == 2, "and does what the dead one held", 60)
    (letter,) = here.letters("shop", 1, 40)
    assert b"order 7" in letter.value() or b"b3JkZXIgN" in letter.value()


@pytest.mark.feature("X3")
def test_a_worker_of_celery_is_controlled_and_tells_results_and_events(
    here: Deployment, celery: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    def said(what: str, log: str = "celery.log") -> int:
        return (tmp_path / log).read_text().count(what)

    celery = partial(celery, queue="controlled")  # another test leaves a long task in its queue

    def ran(*arguments: str, log: str) -> str:
        assert celery(*arguments, log=log).wait(60) == 0, (tmp_path / log).read_text()
        return (tmp_path / log).read_text()

    command = ("-m", "celery", "-A", "celery_tasks")
    celery("-c", EVENTS, log="events.log")
    options = ("--concurrency", "1", "--max-tasks-per-child", "1", "--loglevel", "info", "--task-events")
    celery(*command, "worker", *options, "--hostname", "controlled@here")  # each task in a child forked meanwhile
    until(lambda: said("ready."), "the worker is there", 60)
    ping = ("inspect", "ping", "--destination", "controlled@here", "--timeout", "20")
    assert "controlled@here: OK" in ran(*command, *ping, log="ping.log")
    assert "order a is packed, order c is revoked" in ran("-c", ASKS, log="asks.log")
    until(lambda: said("Discarding revoked task"), "the revoked task's turn", 60)
    assert not said("packing order c")
    until(lambda: said("task-revoked", "events.log"), "an event", 30)


EVENTS = """
from celery_tasks import app
with app.connection() as connection:
    tell = {"*": lambda event: print(event["type"], flush=True)}
    app.events.Receiver(connection, handlers=tell).capture(limit=None, wakeup=True)
"""

ASKS = """
from celery_tasks import app, pack
packed = pack.delay("order a").get(timeout=30)
revoked = pack.apply_async(["order c"], countdown=6)  # its queue keeps it until then
(reply,) = app.control.revoke(revoked.id, reply=True, destination=["controlled@here"], timeout=20)
assert "ok" in reply["controlled@here"]
print(f"{packed}, order c is revoked")
"""


def test_the_scheme_is_known() -> None:
    assert kombu.Connection("lapse://x").transport_cls == "lapse"
    assert kombu.transport.get_transport_cls("lapse") is lapse_kombu.Transport

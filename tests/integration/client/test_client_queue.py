"""The queue subscriber against scripted shards on a real broker."""

import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from lapse.protocol import topic
from lapse_client.delivery.delivery import Delivery
from lapse_client.error import AlreadySettled, AnswerTimeout, CommandFailed, UnknownEntity
from lapse_client.kafka.connection import Connection
from lapse_client.publisher.publisher import Publisher
from lapse_client.queue.queue import Queue
from lapse_client.session.channel import MOST_AT_ONCE
from lapse_client.subscriber.settlement import SettlementResult
from lapse_client.subscriber.subscriber import QueueSubscriber
from support.clients.scripted_shard import ScriptedShards
from support.kafka.created_topic import create

Start = Callable[..., ScriptedShards]


@pytest.fixture
def shards(kafka: str, unique: Callable[[str], str]) -> Iterator[Start]:
    started: list[ScriptedShards] = []

    def start(partitions: int = 1, **options: int) -> ScriptedShards:
        started.append(ScriptedShards(kafka, unique(f"q{len(started)}"), partitions, **options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def publish(shards: ScriptedShards, count: int) -> None:
    with Publisher(Connection(shards.servers)) as publisher:
        for number in range(count):
            publisher.publish(shards.queue, str(number), key=str(number), headers={"own": "yes"})


def subscriber(shards: ScriptedShards, max_backlog: int = 1, **options: object) -> QueueSubscriber:
    return QueueSubscriber(shards.queue, max_backlog, connection=Connection(shards.servers), **options)


def until(condition: Callable[[], object], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.01)


@pytest.mark.feature("X3", "Q3")
@pytest.mark.parametrize("max_backlog", [1, 2, 3, 100])
def test_all_messages_come_once_and_never_more_are_outstanding_than_allowed(shards: Start, max_backlog: int) -> None:
    queue = shards(partitions=3)
    publish(queue, 100)
    seen = []
    with subscriber(queue, max_backlog) as receiver:
        for delivery in receiver.messages(timeout=30):
            with delivery:
                seen.append(int(delivery.value))
                assert delivery.headers == [("own", b"yes")]
                assert delivery.key == delivery.value
                assert delivery.delivery_count == 1
            if len(seen) == 100:
                break
    assert sorted(seen) == list(range(100))
    assert queue.depth() == 0
    assert queue.most_outstanding[receiver.name] <= max_backlog


@pytest.mark.feature("X3")
def test_batches_are_acknowledged_as_ranges(shards: Start) -> None:
    queue = shards()
    publish(queue, 2000)
    seen = 0
    with subscriber(queue, 1000) as receiver:
        for batch in receiver.batches(timeout=30):
            receiver.acknowledge(batch)
            seen += len(batch)
            if seen == 2000:
                break
    assert queue.depth() == 0
    assert [name for _, name in queue.log].count("acknowledge") <= 20


@pytest.mark.feature("X3")
def test_an_exception_cancels(shards: Start) -> None:
    queue = shards()
    publish(queue, 1)
    with subscriber(queue) as receiver:
        with pytest.raises(ZeroDivisionError), receiver.receive(10):
            raise ZeroDivisionError
        again = receiver.receive(10)
        assert again.delivery_count == 2
        again.acknowledge()
        with pytest.raises(AlreadySettled):
            again.cancel()
    assert queue.depth() == 0


@pytest.mark.feature("X3")
def test_a_callback_gets_everything_and_its_failures_come_again(shards: Start) -> None:
    queue = shards(partitions=2)
    publish(queue, 50)
    seen: list[int] = []
    failed = threading.Event()

    def handle(delivery: object) -> None:
        if delivery.value == b"7" and not failed.is_set():
            failed.set()
            raise ValueError("seven")
        seen.append(int(delivery.value))
        if len(seen) == 50:
            threading.Thread(target=receiver.close).start()

    with subscriber(queue, 10) as receiver:
        receiver.run(handle, threads=3)
    assert sorted(seen) == list(range(50))
    until(lambda: queue.depth() == 0)


@pytest.mark.feature("X3", "Q5")
def test_close_gives_back_at_once(shards: Start) -> None:
    queue = shards()
    publish(queue, 10)
    with subscriber(queue, 10) as receiver:
        assert receiver.receive(10)
    assert not queue.subscriptions[0]
    with subscriber(queue, 10) as receiver:
        batch = []
        while len(batch) < 10:
            batch += receiver.subscription.take(10, 5)
        assert {delivery.delivery_count for delivery in batch} == {2}


@pytest.mark.feature("X3", "Q5")
def test_heartbeats_go_on_while_the_application_works(shards: Start) -> None:
    queue = shards()
    publish(queue, 1)
    with subscriber(queue, heartbeat_timeout_ms=600) as receiver:
        delivery = receiver.receive(10)
        time.sleep(1.3)  # two heartbeat timeouts
        assert receiver.settle("acknowledge", [delivery], wait=True)[0].settled
    assert queue.depth() == 0


@pytest.mark.feature("X3")
def test_prefetched_messages_whose_lease_is_over_are_dropped(shards: Start) -> None:
    queue = shards(lease_ms=1000)
    publish(queue, 5)
    with subscriber(queue, 5) as receiver:
        first = receiver.receive(10)
        until(lambda: len(receiver.subscription.arrivals) == 4)
        time.sleep(1.2)
        again = receiver.receive(10)
        assert first.delivery_count == 1
        assert again.delivery_count > 1


@pytest.mark.feature("X3", "C5")
@pytest.mark.parametrize("answers_late", [False, True])
def test_a_forgotten_subscription_is_made_again(shards: Start, answers_late: bool) -> None:
    """Late answers to heartbeats from before that make nobody drop what came with the new one, under leases of 30 s."""
    queue = shards(partitions=2)
    with subscriber(queue, 4, heartbeat_timeout_ms=600) as receiver:
        queue.answers_late = answers_late
        publish(queue, 10)
        until(lambda: len(receiver.subscription.arrivals) == 4)
        queue.log.clear()
        queue.forget()

        def has_gone_on(partition: int) -> bool:
            said = [name for where, name in queue.log if where == partition]
            return "subscribe" in said and said[said.index("subscribe") :].count("heartbeat") > 2

        until(lambda: all(map(has_gone_on, range(2))))  # all that was told of before has come
        seen = []
        for delivery in receiver.messages(timeout=5):
            with delivery:
                seen.append(delivery.value)
            if len(seen) == 10:
                break
        assert len(seen) == 10


@pytest.mark.feature("X3", "Q8", "C13", "C17")
def test_settlements_tell_their_results(shards: Start) -> None:
    queue = shards()
    publish(queue, 3)
    with subscriber(queue, 3) as receiver:
        batch = [receiver.receive(10) for _ in range(3)]
        before_ms = batch[0].lease_until_ms
        results = receiver.settle("renew", batch, wait=True, lease_ms=30_000)
        assert all(result.settled for result in results)
        assert batch[0].lease_until_ms > before_ms
        assert all(result.settled for result in receiver.settle("expire", batch[:1], wait=True))
        queue.queues[0][batch[1].bookmark.offset].count += 1
        refused = receiver.settle("cancel", batch[1:2], wait=True)
        assert [result.result for result in refused] == ["stale"]


@pytest.mark.feature("X3", "X7")
def test_an_unknown_queue_is_named_with_those_that_exist(shards: Start) -> None:
    queue = shards()
    with pytest.raises(UnknownEntity, match="nowhere") as caught:
        QueueSubscriber("nowhere", connection=Connection(queue.servers)).start()
    assert queue.queue in caught.value.known


@pytest.mark.feature("X3", "X7")
def test_a_refused_subscription_says_why(shards: Start) -> None:
    with pytest.raises(CommandFailed, match="column 1"):
        subscriber(shards(), filter="bad").start()


@pytest.mark.feature("X3")
def test_no_worker_is_reported_as_such(shards: Start) -> None:
    queue = shards()
    queue.muted = True
    create(AdminClient({"bootstrap.servers": queue.servers}), NewTopic(topic.events(queue.queue), 1))
    with pytest.raises(AnswerTimeout, match="lapse worker"):
        subscriber(queue, timeout_s=1.0).start()


@pytest.mark.feature("Q3")
def test_a_subscription_may_name_queues_by_regular_expression(shards: Start) -> None:
    first, second = shards(), shards(partitions=2)
    publish(first, 5)
    publish(second, 5)
    pattern = re.compile(r"q[01]" + re.escape(first.queue[2:]))
    seen = []
    with QueueSubscriber(pattern, 2, connection=Connection(first.servers)) as receiver:
        for delivery in receiver.messages(timeout=5):
            with delivery:
                seen.append(delivery.queue)
            if len(seen) == 10:
                break
    assert sorted(set(seen)) == sorted([first.queue, second.queue])
    assert len(seen) == 10


@pytest.mark.feature("Q3", "X3")
def test_a_queue_that_comes_later_and_matches_is_joined(shards: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages come, too, and the backlog holds over all queues together."""
    monkeypatch.setattr("lapse_client.subscriber.subscriber.LOOK_EVERY_S", 0.2)
    first = shards(partitions=2)
    publish(first, 20)
    pattern = re.compile(r"q[0-9]+" + re.escape(first.queue[2:]))
    with QueueSubscriber(pattern, 6, connection=Connection(first.servers)) as receiver:
        held = [receiver.receive(10) for _ in range(6)]
        second = shards(partitions=3)
        publish(second, 30)
        until(lambda: second.queue in {shard.entity for shard in receiver.subscription.channel.shards})
        assert receiver.receive(0.5) is None, "more than the backlog"
        for delivery in held:
            assert delivery is not None
            delivery.acknowledge()
        seen = {delivery.place for delivery in held if delivery is not None}
        while len(seen) < 50:
            delivery = receiver.receive(10)
            assert delivery is not None, seen
            seen.add(delivery.place)
            delivery.acknowledge()
        until(lambda: first.depth() == 0 and second.depth() == 0)


@pytest.mark.feature("Q15", "X3")
def test_a_queue_is_inquired_and_settled_without_a_subscription(shards: Start) -> None:
    queue = shards(partitions=2)
    publish(queue, 4)
    until(lambda: queue.depth() == 4)
    with Queue(queue.queue, connection=Connection(queue.servers)) as client:
        assert client.depth()["depth"] == 4
        messages = client.peek()
        assert len(messages) == 4
        results = client.acknowledge([message.bookmark for message in messages])
        assert {result.result for result in results} == {"settled"}
        assert client.depth()["depth"] == 0


@pytest.mark.feature("C55", "X3")
@pytest.mark.parametrize("how", ["acknowledge", "expire"])
def test_a_settlement_whose_answer_a_crash_swallowed_is_sent_again(shards: Start, how: str) -> None:
    """It took effect before the crash; the repeated one finds it done, and that is success."""
    queue = shards()
    publish(queue, 1)
    with subscriber(queue) as receiver:
        delivery = receiver.receive(20)
        assert delivery is not None
        queue.dies_before_it_answers = True
        taken = threading.Thread(target=lambda: (until(lambda: (0, how) in queue.log), queue.take_over()))
        taken.start()
        (result,) = receiver.settle(how, [delivery], wait=True)  # raises if the answer does not come in time
        taken.join()
        assert result.result == "settled"
        assert queue.log.count((0, how)) == 2
    with Queue(queue.queue, connection=Connection(queue.servers)) as whole:
        assert whole.depth()["depth"] == 0


@pytest.mark.feature("C55", "C21")
@pytest.mark.parametrize("how", ["pause", "resume"])
def test_a_pause_whose_answer_a_crash_swallowed_is_sent_again(shards: Start, how: str) -> None:
    queue = shards()
    queue.dies_before_it_answers = True
    taken = threading.Thread(target=lambda: (until(lambda: (0, how) in queue.log), queue.take_over()))
    with Queue(queue.queue, connection=Connection(queue.servers)) as whole:
        taken.start()
        getattr(whole, how)()
        taken.join()
    assert queue.log.count((0, how)) == 2


@pytest.mark.feature("C55", "C16")
def test_what_was_settled_before_is_reported_as_that_while_nothing_crashes(shards: Start) -> None:
    queue = shards()
    publish(queue, 1)
    with subscriber(queue) as receiver, Queue(queue.queue, connection=Connection(queue.servers)) as whole:
        delivery = receiver.receive(20)
        assert delivery is not None
        assert [one.result for one in whole.acknowledge([str(delivery.bookmark)])] == ["settled"]
        assert [one.result for one in whole.acknowledge([str(delivery.bookmark)])] == ["already_settled"]


@pytest.mark.feature("Q8", "X3")
def test_a_subscriber_is_closed_by_whom_it_tells_that_a_settlement_was_not_sent(shards: Start) -> None:
    """Reports come in callbacks of librdkafka, which waits for their ends when it is closed."""
    queue = shards()
    publish(queue, 1)
    results: list[SettlementResult] = []
    closed = threading.Event()

    def close(result: SettlementResult) -> None:
        results.append(result)
        receiver.close()
        closed.set()

    receiver = subscriber(queue, on_refused=close).start()
    delivery = receiver.receive(20)
    assert delivery is not None
    commands = ConfigResource(ResourceType.TOPIC, topic.commands(queue.queue))
    commands.add_incremental_config(ConfigEntry("max.message.bytes", "1", incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": queue.servers})
    for done in admin.incremental_alter_configs([commands]).values():
        done.result(30)
    probe, faults = Producer({"bootstrap.servers": queue.servers}), list[object]()

    def is_refused() -> bool:
        probe.produce(topic.commands(queue.queue), b"{}", on_delivery=lambda fault, _: faults.append(fault))
        return probe.flush(10) == 0 and faults[-1] is not None

    until(is_refused)  # the broker goes by the new limit a moment later
    delivery.acknowledge()
    assert closed.wait(60)
    assert [one.result for one in results] == ["not_sent"]
    thread = receiver.subscription.channel.thread
    assert thread is not None
    until(lambda: not thread.is_alive())


@pytest.mark.feature("Q12", "X3")
@pytest.mark.parametrize("max_backlog", [0, 10])
def test_barriers_that_nobody_takes_do_not_fill_the_memory(
    shards: Start, max_backlog: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They take no room in a backlog. A channel takes up to 5,000 records at once, and stops reading behind them."""
    queue, count = shards(), 20_000
    with subscriber(queue, max_backlog) as receiver:
        assert receiver._subscription is not None
        arrivals = receiver._subscription.arrivals
        queue.release_barriers(count)
        until(lambda: len(arrivals) > 1_000)
        before = -1
        while before != len(arrivals):  # until nothing comes any more
            before = len(arrivals)
            time.sleep(1)
        assert before <= 1_000 + max_backlog + MOST_AT_ONCE + 1
        publish(queue, 1)
        taken: list[Delivery] = []
        for batch in receiver.batches(500, timeout=20):
            taken += batch
            if len(taken) == count + (max_backlog > 0):
                break
        assert [int(one.value or b"") for one in taken if one.is_barrier] == list(range(count))
        queue.release_barriers(10_000)
        until(lambda: len(arrivals) > 1_000)
    assert not [one for one in caplog.records if one.name == "lapse_client"], (
        "its end does not wait for answers behind barriers"
    )

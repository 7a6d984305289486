"""Who gets which message, under which lease, and what a settlement does: a real broker and a real worker."""

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from lapse_client import AlreadySettled, Delivery, QueueSubscriber
from support.kafka.log import texts, until
from support.processes.deployment import Deployment, broker_now_ms

QUEUES = {
    "backlog": {},
    "capped": {"max_per_subscription_backlog": 3},
    "fast": {"fairness": "fast"},
    "turns": {"fairness": "round-robin"},
    "even": {"fairness": "proportional"},
    "inky": {},
    "once": {"semantics": "at-most-once"},
    "once-fair": {"semantics": "at-most-once"},
    "short-lease": {"lease_period": "2s"},
    "left": {"lease_period": "60s"},
    "lost": {"lease_period": "60s"},
    "settled": {"lease_period": "60s"},
    "strict": {"leasing": "strict", "lease_period": "60s"},
    "sublet": {"leasing": "sublet", "lease_period": "60s"},
    "tries": {"max_deliveries": 2, "lease_period": "2s"},
    "cancels": {"max_cancels": 1},
    "both": {"max_deliveries": 2, "max_cancels": 1},
    "renewed": {"lease_period": "2s", "max_lease_period": "60s"},
    "delayed": {},
    "hung": {"lease_period": "8s", "max_deliveries": 3, "fairness": "proportional"},
    "hung-first": {"lease_period": "8s", "max_deliveries": 3, "fairness": "fast"},
    "rotating": {},
    "handed-on": {},
    "paused": {},
    "purged": {"lease_period": "60s"},
    "order": {"partitions": 3},
    "many": {"lease_period": "60s"},
    "printed": {"lease_period": "60s"},
}


def take(subscriber: QueueSubscriber, count: int, timeout_s: float = 20.0) -> list[Delivery]:
    """Receive so many deliveries, and no more than that for a moment."""
    taken: list[Delivery] = []
    deadline = time.monotonic() + timeout_s
    while len(taken) < count:
        delivery = subscriber.receive(max(0.0, deadline - time.monotonic()))
        assert delivery is not None, f"{len(taken)} of {count} deliveries: {[one.value for one in taken]}"
        taken.append(delivery)
    return taken


def values(deliveries: list[Delivery]) -> list[bytes | None]:
    return [delivery.value for delivery in deliveries]


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.feature("Q3", "D4")
def test_the_backlog_bounds_what_is_outstanding_and_its_default_is_one(served: Deployment) -> None:
    """One by default: the second message comes when the first is settled. Then in order, untouched, with headers."""
    served.write(
        "backlog", *numbers(10), headers=[("own", b"1"), ("own", b"2"), ("empty", b""), ("null", None)], key=b"k"
    )
    with served.subscriber("backlog") as subscriber:
        (first,) = take(subscriber, 1)
        assert subscriber.receive(0.5) is None
        assert served.depth("backlog")["leased"] == 1
        assert first.key == b"k"
        assert first.headers == [("own", b"1"), ("own", b"2"), ("empty", b""), ("null", None)]
        assert first.delivery_count == 1
        assert first.lease_until_ms is not None
        assert 0 < first.lease_until_ms - broker_now_ms() <= 30_000
        first.acknowledge()
        rest = []
        for _ in range(9):
            (one,) = take(subscriber, 1)
            rest.append(one.value)
            one.acknowledge()
    assert rest == [str(number).encode() for number in range(1, 10)]
    until(lambda: served.depth("backlog")["depth"] == 0, "an empty queue")


@pytest.mark.feature("Q3")
def test_the_queue_caps_the_backlog_that_a_subscription_asks_for(served: Deployment) -> None:
    served.write("capped", *numbers(10))
    with served.subscriber("capped", 100) as subscriber:
        taken = take(subscriber, 3)
        assert subscriber.receive(0.5) is None
        assert served.depth("capped")["leased"] == 3
        subscriber.settle("acknowledge", taken, wait=True)
        take(subscriber, 3)


@pytest.mark.feature("Q7")
def test_fast_fills_the_first_subscription_before_the_next(served: Deployment) -> None:
    with ExitStack() as stack:
        some = [stack.enter_context(served.subscriber("fast", backlog)) for backlog in (5, 5, 5)]
        served.write("fast", *numbers(8))
        until(lambda: served.depth("fast")["leased"] == 8, "all leased")
        got = [len(take_all(one)) for one in some]
    assert got == [5, 3, 0]


@pytest.mark.feature("Q7")
@pytest.mark.parametrize("queue", ["turns", "once-fair"])
def test_round_robin_gives_each_subscription_its_turn(served: Deployment, queue: str) -> None:
    """The only fairness that at-most-once has, so its default there."""
    with ExitStack() as stack:
        some = [stack.enter_context(served.subscriber(queue, 100)) for _ in range(3)]
        for number in range(9):
            served.write(queue, str(number))
        got: list[int] = [0, 0, 0]
        until(lambda: sum(collect(some, got)) == 9, "nine deliveries")
    assert got == [3, 3, 3]


@pytest.mark.feature("Q7")
def test_proportional_fills_backlogs_evenly(served: Deployment) -> None:
    """Backlogs 2, 4 and 10, 8 messages: each about half full, none empty."""
    with ExitStack() as stack:
        some = [stack.enter_context(served.subscriber("even", backlog)) for backlog in (2, 4, 10)]
        served.write("even", *numbers(8))
        until(lambda: served.depth("even")["leased"] == 8, "all leased")
        got = [len(take_all(one)) for one in some]
    assert got == [1, 2, 5]


@pytest.mark.feature("Q7")
def test_inky_blinky_and_clyde(served: Deployment) -> None:
    """Backlogs 2, 4, 10 with 1, 3, 4 leased: the next message is Clyde's, for 40 % is less than 50 % and 75 %."""
    with ExitStack() as stack:
        held: list[QueueSubscriber] = []
        for backlog, leased in ((2, 1), (4, 3), (10, 4)):
            one = stack.enter_context(served.subscriber("inky", backlog))
            served.write("inky", *numbers(backlog))
            mine = take(one, backlog)
            one.settle("acknowledge", mine[leased:], wait=True)
            # As long as others are connected with room, the rest of the set-up would go to them: fill them again later.
            held.append(one)
            if len(held) < 3:
                served.write("inky", *numbers(backlog - leased))
                take(one, backlog - leased)
        inky, blinky, clyde = held
        # Inky and Blinky are full now (2 and 4); settle what was only there to keep them out of the way.
        with served.queue("inky") as queue:
            for one, spare in ((inky, 1), (blinky, 1)):
                mine = [message.bookmark for message in queue.peek() if message.subscription == one.name]
                assert all(result.settled for result in queue.acknowledge(mine[-spare:]))
            until(lambda: Counter(message.subscription for message in queue.peek()).total() == 8, "1 + 3 + 4 leased")
            counts = Counter(message.subscription for message in queue.peek())
        assert (counts[inky.name], counts[blinky.name], counts[clyde.name]) == (1, 3, 4)
        served.write("inky", "next")
        (delivery,) = take(clyde, 1)
        assert delivery.value == b"next"


@pytest.mark.feature("Q4", "Q6", "C18", "D4")
def test_at_most_once_removes_before_it_sends_and_an_acknowledgment_only_frees_the_place(served: Deployment) -> None:
    """Nothing is leased, cancel brings nothing back, expire writes no letter; a place is free after each."""
    served.write("once", *numbers(4))
    with served.subscriber("once") as subscriber:
        got = []
        for how in ("acknowledge", "cancel", "expire"):
            (one,) = take(subscriber, 1)
            assert one.lease_until_ms is None
            assert subscriber.receive(0.2) is None
            assert served.depth("once")["leased"] == 0
            got.append(one.value)
            subscriber.settle(how, [one], wait=True)  # type: ignore[arg-type]
        got += values(take(subscriber, 1))
    assert got == [b"0", b"1", b"2", b"3"]
    until(lambda: served.depth("once")["depth"] == 0, "an empty queue")
    kinds = [event.event for event in served.events("once")]
    assert kinds.count("delivered_at_most_once") == 4
    assert not {"cancelled", "dead_lettered", "expired", "lease_returned"} & set(kinds)


@pytest.mark.feature("Q5", "C13", "X3")
def test_a_lease_that_is_over_returns_the_message_to_its_place_and_the_late_acknowledgment_counts(
    served: Deployment,
) -> None:
    """Back in order, before younger messages, with a higher count; under sublet the first holder may still settle."""
    served.write("short-lease", "a", "b")
    with served.subscriber("short-lease") as first:
        (held,) = take(first, 1)
        until(lambda: served.depth("short-lease")["available"] == 2 or held_again(first, served), "the lease's end")
    with served.subscriber("short-lease", 2) as second:
        again = take(second, 2)
        assert values(again) == [b"a", b"b"]
        assert again[0].delivery_count >= 2
        assert again[1].delivery_count == 1
        second.settle("acknowledge", again, wait=True)
    events = [event for event in served.events("short-lease") if event.event == "lease_returned"]
    assert str(events[0].messages[0]) == held.place.decode()


def held_again(subscriber: QueueSubscriber, served: Deployment) -> bool:
    """The holder has room again after its lease is over, so it may be given the message once more."""
    return any(message.delivery_count > 1 for message in peek(served, "short-lease"))


@pytest.mark.feature("C49", "Q5", "Q9")
@pytest.mark.parametrize("queue", ["hung", "hung-first"])
def test_a_hung_consumer_does_not_use_up_deliveries_beside_a_healthy_one(served: Deployment, queue: str) -> None:
    """Its handler hangs, its heartbeats go on: the message goes to the other one when the first lease is over."""
    with served.subscriber(queue) as hung:
        served.write(queue, "good")
        (held,) = take(hung, 1)
        with served.subscriber(queue) as healthy:
            (again,) = take(healthy, 1, 30)
            assert (again.bookmark, again.delivery_count) == (held.bookmark, 2)
            (result,) = healthy.settle("acknowledge", [again], wait=True)
            assert result.result == "settled"
    assert served.depth(queue)["depth"] == 0


@pytest.mark.feature("C49", "Q7")
def test_equals_get_one_message_after_the_other_in_turn(served: Deployment) -> None:
    """Both idle each time: not always the first one found."""
    with served.subscriber("rotating") as one, served.subscriber("rotating") as other:
        for number in range(6):
            served.write("rotating", str(number))
            subscriber = (one, other)[number % 2]
            (delivery,) = take(subscriber, 1, 10)
            assert delivery.value == str(number).encode()
            subscriber.settle("acknowledge", [delivery], wait=True)


@pytest.mark.feature("C49", "Q14")
def test_what_is_cancelled_goes_to_another_one_that_may_have_it_and_has_room(served: Deployment) -> None:
    """Its last holder gets it again while the other one's filter excludes it, or the other one has no room."""
    served.write("handed-on", '{"n": 1}')

    def handed(giver: QueueSubscriber, held: Delivery, receiver: QueueSubscriber) -> Delivery:
        giver.settle("cancel", [held], wait=True)
        (again,) = take(receiver, 1, 10)
        assert (again.bookmark, again.delivery_count) == (held.bookmark, held.delivery_count + 1)
        return again

    with served.subscriber("handed-on") as first, served.subscriber("handed-on", filter="/n = 2") as picky:
        (held,) = take(first, 1)
        held = handed(first, held, first)
        with served.subscriber("handed-on") as second:
            held = handed(first, held, second)
            served.write("handed-on", '{"n": 3}')
            (other,) = take(first, 1, 10)
            held = handed(second, held, second)
            first.settle("acknowledge", [other], wait=True)
            held = handed(second, held, first)
            first.settle("acknowledge", [held], wait=True)
        assert picky.receive(0) is None


@pytest.mark.feature("Q5")
def test_unsubscribing_returns_leases_at_once(served: Deployment) -> None:
    served.write("left", *numbers(3))
    with served.subscriber("left", 3) as subscriber:
        take(subscriber, 3)
    # `close` waits for the answer, so nothing has to be waited for.
    figures = served.depth("left")
    assert (figures["available"], figures["leased"]) == (3, 0)


@pytest.mark.feature("Q5", "C5")
def test_missed_heartbeats_return_leases_long_before_they_end(served: Deployment) -> None:
    """The lease is 60 s; a subscriber that falls silent is lost after its heartbeat timeout of 2 s."""
    served.write("lost", *numbers(2))
    subscriber = served.subscriber("lost", 2, heartbeat_timeout_ms=2_000).start()
    take(subscriber, 2)
    assert subscriber._subscription is not None
    subscriber._subscription.channel.close()  # as if its machine had lost power
    until(lambda: served.depth("lost")["available"] == 2, "the leases back", 15)
    (gone,) = served.awaited("lost", "unsubscribed")
    assert "not heard of" in gone.detail


@pytest.mark.feature("Q8", "C16")
def test_settlement_by_lists_and_ranges_is_answered_bookmark_by_bookmark(served: Deployment) -> None:
    """One command, many fates: settled, settled before, not leased, not yet there, another topic."""
    first = served.write("settled", *numbers(10))[0].offset
    topic = served.name("settled")
    with served.subscriber("settled", 6) as subscriber, served.queue("settled") as queue:
        take(subscriber, 6)
        results = queue.acknowledge(
            [f"{topic}:0:{first}-{first + 2}", f"{topic}:0:{first + 1}", f"{topic}:0:{first + 4}"]
        )
        assert [(len(one.messages), one.result) for one in results] == [
            (3, "settled"),
            (1, "already_settled"),
            (1, "settled"),
        ]
        # 3 and 5 are leased still; four more were delivered in the place of those that were settled.
        take(subscriber, 4)
        (over,) = queue.cancel([f"{topic}:0:{first}"])
        assert over.result == "already_settled"
        results = queue.acknowledge([f"{topic}:0:{first + 8}-{first + 12}"])
        assert [(len(one.messages), one.result) for one in results] == [(2, "settled"), (3, "unknown")]
        (other,) = queue.acknowledge(["no-such-topic:0:1"])
        assert other.result == "unknown"
        results = queue.expire([f"{topic}:0:{first + 3}", f"{topic}:0:{first + 5}-{first + 6}"])
        assert [one.result for one in results] == ["settled", "settled"]
        assert served.depth("settled")["depth"] == 1
    letters = served.letters("settled", 3)
    assert {texts(letter)["lapse-reasons"] for letter in letters} == {"forced_expire"}


@pytest.mark.feature("Q8", "C13", "C14")
def test_strict_leasing_refuses_all_but_the_holder_and_says_so(served: Deployment) -> None:
    served.write("strict", *numbers(3))
    with (
        served.subscriber("strict", 2) as holder,
        served.subscriber("strict", 0) as other,
        served.queue("strict") as queue,
    ):
        held = take(holder, 2)
        place = held[0].place.decode()
        idle = f"{place.rsplit(':', 1)[0]}:{held[1].bookmark.offset + 1}"
        assert [one.result for one in queue.acknowledge([place])] == ["not_holder"]
        assert [one.result for one in queue.expire([place])] == ["not_holder"]
        assert [one.result for one in queue.cancel([place])] == ["not_holder"]
        assert [one.result for one in queue.acknowledge([idle])] == ["not_leased"]
        assert other.name != holder.name
        (mine,) = holder.settle("acknowledge", [held[0]], wait=True)
        assert mine.settled
        assert served.depth("strict")["depth"] == 2
        # What is over and held by another: refused, by its fencing token too.
        holder.settle("cancel", [held[1]], wait=True)
    with served.subscriber("strict", 2) as third:
        taken = take(third, 2)
        assert taken[0].delivery_count > 1
        with served.queue("strict") as queue:
            (late,) = queue.acknowledge([f"{held[1].place.decode()}#1"])
        assert late.result == "not_holder"


@pytest.mark.feature("Q8", "C13", "C14")
def test_sublet_leasing_lets_anyone_acknowledge_even_what_is_not_leased(served: Deployment) -> None:
    first = served.write("sublet", *numbers(4))[0].offset
    topic = served.name("sublet")
    with served.subscriber("sublet", 2) as holder, served.queue("sublet") as queue:
        held = take(holder, 2)
        assert queue.acknowledge([held[0].place.decode()])[0].settled
        take(holder, 1)
        assert queue.acknowledge([f"{topic}:0:{first + 3}"])[0].settled
        (idle,) = queue.cancel([f"{topic}:0:{first + 3}"])
        assert idle.result == "already_settled"
        # An old fencing token: an acknowledgment counts, a cancel does not.
        holder.settle("cancel", [held[1]], wait=True)
        (again,) = take(holder, 1)
        assert again.delivery_count == 2
        assert queue.cancel([f"{again.place.decode()}#1"])[0].result == "stale"
        assert queue.expire([f"{again.place.decode()}#1"])[0].result == "stale"
        assert queue.acknowledge([f"{again.place.decode()}#1"])[0].settled


@pytest.mark.feature("Q9", "L14", "D2")
def test_the_nth_delivery_is_the_last(served: Deployment) -> None:
    """max_deliveries = 2: the second lease that ends unsettled takes the message out, by its own clock."""
    served.write("tries", "poison")
    with served.subscriber("tries") as subscriber:
        (first,) = take(subscriber, 1)
        (second,) = take(subscriber, 1)
        assert (first.delivery_count, second.delivery_count) == (1, 2)
        (letter,) = served.letters("tries", 1)
    facts = texts(letter)
    assert facts["lapse-reasons"] == "max_deliveries"
    assert facts["__dlq.errors.delivery.count"] == "2"
    assert letter.value() == b"poison"


@pytest.mark.feature("Q9", "L14")
def test_the_cancel_beyond_the_limit_expires(served: Deployment) -> None:
    """max_cancels = 1: the first cancel returns the message, the second takes it out."""
    served.write("cancels", "x")
    with served.subscriber("cancels") as subscriber:
        (first,) = take(subscriber, 1)
        first.cancel()
        (second,) = take(subscriber, 1)
        assert second.delivery_count == 2
        second.cancel()
        (letter,) = served.letters("cancels", 1)
    facts = texts(letter)
    assert (facts["lapse-reasons"], facts["lapse-cancel-count"]) == ("max_cancels", "2")


@pytest.mark.feature("Q9", "C22", "L14")
def test_both_limits_at_once_give_both_reasons(served: Deployment) -> None:
    served.write("both", "x")
    with served.subscriber("both") as subscriber:
        for _ in range(2):
            (one,) = take(subscriber, 1)
            one.cancel()
        (letter,) = served.letters("both", 1)
    assert texts(letter)["lapse-reasons"] == "max_deliveries,max_cancels"
    (event,) = served.awaited("both", "dead_lettered")
    assert event.reasons == ("max_deliveries", "max_cancels")


@pytest.mark.feature("Q8", "C17")
def test_renewing_extends_a_lease_from_now(served: Deployment) -> None:
    """A lease of 2 s, renewed for 30 s, is still held after 3 s; more than max_lease_period is refused."""
    served.write("renewed", "x")
    with served.subscriber("renewed") as subscriber:
        (one,) = take(subscriber, 1)
        before_ms = one.lease_until_ms or 0
        (result,) = subscriber.settle("renew", [one], lease_ms=30_000, wait=True)
        assert result.settled
        assert (one.lease_until_ms or 0) > before_ms + 20_000
        until(lambda: broker_now_ms() > before_ms + 1_000, "the end of the first lease")
        assert served.depth("renewed")["leased"] == 1
        with pytest.raises(Exception, match="max_lease_period"):
            subscriber.settle("renew", [one], lease_ms=61_000, wait=True)
        one.acknowledge()
        with pytest.raises(AlreadySettled):
            one.acknowledge()


@pytest.mark.feature("Q8", "C19")
def test_a_cancel_with_a_delay_keeps_the_message_back(served: Deployment) -> None:
    """Undeliverable for 2 s, counted in the depth, then delivered before what is younger."""
    served.write("delayed", "old", "young")
    with served.subscriber("delayed") as subscriber:
        (old,) = take(subscriber, 1)
        subscriber.settle("cancel", [old], delay_ms=2_000, wait=True)
        (young,) = take(subscriber, 1)
        assert young.value == b"young"
        figures = served.depth("delayed")
        assert (figures["delayed"], figures["depth"]) == (1, 2)
        served.write("delayed", "youngest")
        young.acknowledge()
        (youngest,) = take(subscriber, 1)
        until(lambda: served.depth("delayed")["delayed"] == 0, "the delay's end")
        youngest.cancel()
        (again,) = take(subscriber, 1)
        assert (again.value, again.delivery_count) == (b"old", 2)


@pytest.mark.feature("Q21", "C21")
def test_a_paused_queue_delivers_nothing_and_settles_all_the_same(served: Deployment) -> None:
    served.write("paused", *numbers(3))
    with served.subscriber("paused") as subscriber, served.queue("paused") as queue:
        (first,) = take(subscriber, 1)
        queue.pause()
        first.acknowledge()
        until(lambda: queue.depth()["depth"] == 2, "the settlement")
        assert subscriber.receive(0.5) is None
        queue.resume()
        assert values(take(subscriber, 1)) == [b"1"]


@pytest.mark.feature("Q21", "C37", "C25", "L14")
def test_a_purge_spares_what_is_leased_and_writes_no_letter_by_default(served: Deployment) -> None:
    served.write("purged", *numbers(5))
    with served.subscriber("purged", 2) as subscriber, served.queue("purged") as queue:
        held = take(subscriber, 2)
        assert queue.purge().items() >= {"removed": 3, "skipped": 2}.items()
        assert queue.depth()["depth"] == 2
        subscriber.settle("acknowledge", [held[0]], wait=True)
        assert queue.purge(leased=True).items() >= {"removed": 1, "skipped": 0}.items()
        (late,) = subscriber.settle("acknowledge", [held[1]], wait=True)
        assert late.result == "already_settled"
    letters = served.tail(f"dlq.{served.name('purged')}")
    assert letters.drain() == []
    assert [event.reasons for event in served.events("purged") if event.event == "expired"] == [
        ("purged",),
        ("purged",),
    ]


@pytest.mark.feature("Q3", "Q17")
def test_partitions_keep_their_own_order_under_one_subscription(served: Deployment) -> None:
    for partition in range(3):
        served.write("order", *(f"{partition}-{number}" for number in range(50)), partition=partition)
    seen: dict[str, list[int]] = {"0": [], "1": [], "2": []}
    with served.subscriber("order", 9) as subscriber:
        for _ in range(150):
            (one,) = take(subscriber, 1)
            partition, _, number = (one.value or b"").decode().partition("-")
            seen[partition].append(int(number))
            one.acknowledge()
    assert all(order == list(range(50)) for order in seen.values())


@pytest.mark.feature("Q3", "Q8", "D4")
def test_twenty_thousand_messages_pass_once_each_and_batches_of_acknowledgments_cost_few_events(
    served: Deployment,
) -> None:
    count = 20_000
    served.write("many", *numbers(count))
    seen: Counter[bytes | None] = Counter()
    with served.subscriber("many", 5_000) as subscriber:
        for batch in subscriber.batches(5_000, timeout=30):
            seen.update(values(batch))
            subscriber.acknowledge(batch)
            if len(seen) == count:
                break
    assert seen.total() == count
    until(lambda: served.depth("many")["depth"] == 0, "an empty queue")
    events = [event for event in served.events("many") if event.event == "acknowledged"]
    assert sum(len(one) for event in events for one in event.messages) == count
    assert len(events) < count / 50


def peek(served: Deployment, stem: str) -> list[object]:
    with served.queue(stem) as queue:
        return list(queue.peek())


def take_all(subscriber: QueueSubscriber) -> list[Delivery]:
    """What has been delivered to a subscriber by now."""
    taken = []
    while (delivery := subscriber.receive(0.5)) is not None:
        taken.append(delivery)
    return taken


def collect(some: list[QueueSubscriber], got: list[int]) -> list[int]:
    """Count what each has received."""
    for index, one in enumerate(some):
        while one.receive(0.05) is not None:
            got[index] += 1
    return got


@pytest.mark.feature("Q5", "X3")
def test_what_the_command_has_printed_is_acknowledged_when_sigterm_ends_it_and_the_rest_is_back(
    served: Deployment,
) -> None:
    served.write("printed", *numbers(2_000))
    name = served.name("printed")
    command = [sys.executable, "-m", "lapse", "queue", "subscribe", name, "--max-backlog", "500"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=served.environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        printed = [process.stdout.readline() for _ in range(700)]
        process.send_signal(signal.SIGTERM)
        printed += process.stdout.readlines()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
    depth = served.depth("printed")
    assert (depth["leased"], depth["subscriptions"]) == (0, 0)
    # The signal may come between the print of a message and its settlement.
    assert depth["available"] - (2_000 - len(printed)) in (0, 1)
    if len(printed) < 2_000:
        with served.subscriber("printed") as subscriber:
            assert (take(subscriber, 1)[0].value or b"") in (printed[-1].strip(), b"%d" % len(printed))

"""Rates hold in every window of the log, and limits at any time, whatever becomes of the worker (Q25, C71)."""

import json
import threading
from bisect import bisect_left
from collections import Counter, defaultdict

import pytest
from confluent_kafka import Message

from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse_client import Delivery
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment

MOST, MOST_OF_A_TENANT, WINDOW_MS = 20, 8, 500
MOST_LEASED = 4


def most_in_a_window(instants_ms: list[int]) -> int:
    """The most of some ascending instants that lie in one half-open window."""
    ends = (bisect_left(instants_ms, begin_ms + WINDOW_MS) for begin_ms in instants_ms)
    return max(end - first for first, end in enumerate(ends))


def is_delivery(record: Message) -> bool:
    """Whether a record hands out a message."""
    return dict(record.headers() or []).get(header.KIND) == b"delivery"


def consume(deployment: Deployment, stop: threading.Event, most_held: Counter[str]) -> None:
    """Cancel every second message at its first delivery, so that it comes again, and acknowledge the others.

    It keeps what it gets until nothing else comes; `most_held` is how many of each tenant it had at once.
    """
    held: dict[Bookmark, Delivery] = {}
    with deployment.subscriber("jobs", 50, payload="inline") as subscriber:
        while not stop.is_set():
            if (delivery := subscriber.receive(0.05)) is not None:
                held[delivery.bookmark] = delivery  # one that comes again after a kill is held once
                most_held |= Counter(json.loads(one.value or b"")["tenant"] for one in held.values())
                continue
            for one in held.values():
                if one.bookmark.offset % 2 and one.delivery_count == 1:
                    one.cancel()
                else:
                    one.acknowledge()
            held.clear()


@pytest.mark.feature("Q25", "C71")
def test_no_window_has_more_deliveries_than_the_rates_and_no_group_more_leased_over_kill_9(deploy: Deploy) -> None:
    rate, of_a_tenant = f"{MOST}/{WINDOW_MS}ms", {"messages": MOST_OF_A_TENANT, "per": f"{WINDOW_MS}ms"}
    jobs = {"group_by": "/tenant", "group_limit": MOST_LEASED, "rate": rate, "group_rate": of_a_tenant}
    deployment = deploy({"jobs": jobs, "slow": {"rate": "1/1h"}}).apply()
    tenants = ["great" if number % 10 else f"small-{number % 20}" for number in range(1_000)]
    deployment.write("jobs", *(json.dumps({"tenant": tenant}) for tenant in tenants))
    worker, stop = deployment.worker().wait_for_shards(2), threading.Event()
    slow = deployment.write("slow", "1", "2")
    with deployment.subscriber("slow", 9) as subscriber:
        assert subscriber.receive(20) is not None
        assert subscriber.receive(0.5) is None
    most_held: Counter[str] = Counter()
    consumer = threading.Thread(target=consume, args=(deployment, stop, most_held))
    consumer.start()
    tail = deployment.tail(topic.deliveries(deployment.name("jobs")))
    try:
        for times in (2, 4, 6):
            enough = times * MOST
            tail.wait_for(lambda records, enough=enough: sum(map(is_delivery, records)) >= enough, "deliveries", 60)
            if times < 6:
                worker.kill()
                worker.start().wait_for_shards(2)
    finally:
        stop.set()
        consumer.join()
    assert most_held == dict.fromkeys(("great", "small-0", "small-10"), MOST_LEASED)
    seen: set[tuple[bytes, bytes]] = set()
    instants_ms: dict[str, list[int]] = defaultdict(list)
    for record in filter(is_delivery, tail.drain()):
        said = dict(record.headers() or [])
        delivery = said.get(header.BOOKMARK, b""), said.get(header.DELIVERY_COUNT, b"")
        if delivery in seen:
            continue  # a repetition (C55)
        seen.add(delivery)
        for name in ("", json.loads(record.value() or b"")["tenant"]):
            instants_ms[name].append(record.timestamp()[1])
    assert most_in_a_window(instants_ms[""]) <= MOST
    assert max(most_in_a_window(of) for name, of in instants_ms.items() if name) <= MOST_OF_A_TENANT
    assert len(instants_ms) == 4, "all, and those of three tenants"
    assert len(instants_ms["great"]) > 2 * MOST_OF_A_TENANT
    assert any(count != b"1" for _, count in seen), "some came again"
    # What waits for its rate says so after the kills, too (C48).
    with deployment.queue("slow") as queue:
        texts = {one.waits_for for one in queue.peek() if one.state == "available"}
    assert all(text.startswith("the rate of its queue, not before 20") for text in texts), texts
    assert texts
    explain = ("explain", deployment.bookmark("slow", slow[1]))
    until(  # it does without the queue's word where that does not come at once
        lambda: "the rate of its queue, not before 20" in " ".join(deployment.lapse(*explain).stdout.split()),
        "what it waits for",
    )

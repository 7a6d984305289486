"""Letters of messages that expire far apart from each other are those of their records, whatever stands between."""

from random import Random

import pytest
from confluent_kafka import Producer

from lapse.protocol import topic
from support.kafka.log import until
from support.processes.deployment import Deploy, broker_now_ms

MESSAGES, AT_ONCE, STAYS = 12_000, 1_500, 7
CODECS = ["none", "lz4", "zstd", "gzip"]


@pytest.mark.feature("C60", "D2", "D3", "L11", "C41")
@pytest.mark.timeout(240)
def test_scattered_letters_are_right_over_a_kill_with_holes_in_the_log_and_any_codec(deploy: Deploy) -> None:
    """Every seventh message stays; the deadlines of the others take turns, so that each part of the log has some due.

    Some batches are those of transactions, of which every other one is aborted: their markers and records are holes.
    """
    one = deploy({"orders": {"expiration": "enabled", "payload_window": 1}}).apply()
    worker = one.worker().wait_for_shards(1)
    due_ms, random, expected = broker_now_ms() + 10_000, Random(7), {}
    for first in range(0, MESSAGES, AT_ONCE):
        batch = first // AT_ONCE
        settings = {"bootstrap.servers": one.servers, "compression.type": CODECS[batch % 4], "linger.ms": 20}
        transactional = batch % 4 >= 2
        producer = Producer(settings | ({"transactional.id": f"{one.name('t')}-{batch}"} if transactional else {}))
        for aborted in (True, False) if transactional else (False,):
            if transactional:
                if aborted:
                    producer.init_transactions(20)
                producer.begin_transaction()
            for number in range(first, first + AT_ONCE):
                key = b"%d" % number
                value = None if number % 11 == 0 else random.randbytes(number % 300)
                headers = [] if number % STAYS == 0 else [("lapse-expires-at-ms", b"%d" % (due_ms + number % 3_000))]
                if number % 5 == 0:
                    headers += [("träce", key), ("none", None)]
                if number % 50 == 1:
                    headers.append(("lapse-redriven-count", b"1"))
                if not aborted:
                    expected[key] = value, headers
                producer.produce(one.name("orders"), value, key, headers=headers)
                producer.poll(0)
            if transactional:
                producer.abort_transaction(30) if aborted else producer.commit_transaction(30)
        assert producer.flush(30) == 0
    with one.queue("orders") as queue:
        until(lambda: queue.depth()["depth"] == MESSAGES, "all are there", 60)
    assert broker_now_ms() < due_ms, "the machine is too slow for this test"
    leaves = {key for key in expected if int(key) % STAYS}
    tail = one.tail(topic.dead_letters(one.name("orders")))
    until(lambda: len(tail.poll()) > len(leaves) // 4, "some letters are there", 60)
    worker.kill()
    one.worker().wait_for_shards(1)
    until(lambda: len({letter.key() for letter in tail.poll()}) == len(leaves), "all letters are there", 60)
    until(lambda: one.depth("orders")["depth"] == MESSAGES - len(leaves), "the others stay")
    ids: dict[bytes, set[bytes]] = {}
    for letter in tail.drain():
        key, headers = letter.key(), letter.headers()
        value, own = expected[key]
        facts = dict(headers)
        ids.setdefault(key, set()).add(facts["lapse-id"])
        deadline, redriven = dict(own)["lapse-expires-at-ms"], dict(own).get("lapse-redriven-count", b"0")
        assert letter.value() == value
        assert (facts["lapse-expires-at-ms"], facts["lapse-original-expires-at-ms"]) == (deadline, deadline)
        assert (facts["lapse-reasons"], facts["lapse-redriven-count"]) == (b"time_limit", redriven)
        assert facts["lapse-id"].endswith(b":%s/%s" % (facts["__dlq.errors.offset"], redriven))
        assert [one for one in headers if one[0] in ("träce", "none")] == own[1:3] * (int(key) % 5 == 0)
    assert ids.keys() == leaves
    assert all(len(some) == 1 for some in ids.values()), "a letter that was written twice has one id"
    assert len(set().union(*ids.values())) == len(leaves)

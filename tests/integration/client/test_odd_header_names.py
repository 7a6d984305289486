"""A header whose name is no UTF-8 stops nobody: such a record is a message like any other (X7)."""

import asyncio

import pytest

from lapse.protocol import topic
from lapse.runtime.kafka.output import Packed
from lapse.runtime.kafka.packed_record import packed, packed_headers
from lapse.runtime.kafka.producer import BatchProducer
from lapse_client import SowClient
from lapse_client.subscriber.terms import Payload
from support.processes.deployment import Deploy, Deployment

ODD, MANY = 3, 20


def write(deployment: Deployment, stem: str, count: int) -> None:
    """Write so many records in one batch; the name of a header of one of them is a byte that begins no character."""

    def record(number: int) -> bytes:
        headers = [("a", b"1"), ("\udcff", b"2") if number == ODD else ("b", b"2")]
        return packed(b"k%d" % number, b'{"n": 1}', len(headers), packed_headers(headers))

    async def run() -> None:
        producer = BatchProducer(deployment.servers, {})
        await producer.start()
        batch = Packed(deployment.name(stem), 0, [record(number) for number in range(count)])
        for future in await producer.send([batch]):
            await future
        await producer.stop()

    asyncio.run(run())


@pytest.fixture(scope="module")
def here(deploy: Deploy) -> Deployment:
    deployment = deploy({})
    deployment.configure({"orders": {"expiration": "enabled", "lease_period": "60s"}}, {"prices": {}})
    deployment.apply().worker().wait_for_shards(2)
    return deployment


@pytest.mark.feature("X7", "D2")
@pytest.mark.parametrize("payload", ["packed", "inline"])
@pytest.mark.parametrize("count", [ODD + 2, MANY])
def test_a_message_with_an_odd_header_is_delivered_and_becomes_a_letter(
    here: Deployment, payload: Payload, count: int
) -> None:
    tail = here.tail(topic.dead_letters(here.name("orders")), from_end=True)
    write(here, "orders", count)
    with here.subscriber("orders", 50, payload=payload) as subscriber:
        got = {}
        for delivery in subscriber.messages(timeout=20):
            got[delivery.key] = delivery.headers
            how = "expire" if delivery.key == b"k%d" % ODD else "acknowledge"
            subscriber.settle(how, [delivery], wait=True)
            if len(got) == count:
                break
    assert got == {b"k%d" % n: [("a", b"1"), ("\ufffd" if n == ODD else "b", b"2")] for n in range(count)}
    (letter,) = tail.wait(1)
    assert ("\ufffd", b"2") in (letter.headers() or ())


@pytest.mark.feature("X7", "S1")
def test_a_record_with_an_odd_header_is_kept(here: Deployment) -> None:
    write(here, "prices", MANY)
    with SowClient(here.name("prices"), connection=here.connection) as prices:
        records = {record.key: record.headers for record in prices.query(keys=[f"k{ODD}", "k0"])}
    assert records == {b"k0": [("a", b"1"), ("b", b"2")], b"k3": [("a", b"1"), ("\ufffd", b"2")]}

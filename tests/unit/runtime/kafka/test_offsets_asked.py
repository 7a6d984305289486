"""Offsets that are asked for, and those that a consumer knows without asking."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError

from lapse.runtime.kafka.offsets_asked import next_read

ORDERS = TopicPartition("orders", 0)


@pytest.mark.feature("C52")
def test_nobody_waits_for_a_leader_to_learn_what_is_read_next() -> None:
    async def ask() -> tuple[int, int]:
        consumer = AIOKafkaConsumer(bootstrap_servers="127.0.0.1:1")
        consumer.assign([ORDERS])
        unknown = next_read(consumer, ORDERS)  # as behind an offset that Kafka has removed
        consumer._subscription.subscription.assignment.state_value(ORDERS).reset_to(7)
        with pytest.raises(IllegalStateError):
            next_read(consumer, TopicPartition("orders", 1))
        return unknown, next_read(consumer, ORDERS)

    assert asyncio.run(ask()) == (-1, 7)

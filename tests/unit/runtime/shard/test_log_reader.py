"""Reading back from a log whose leader falls silent: nothing that was read is lost (C52)."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition

from lapse.runtime.shard.log_reader import LogReader
from unit.runtime.shard.test_payload import Stored

TP = TopicPartition("t", 0)


class Consumer:
    """Reads a log of ten records, five at a time. It may not know its position once."""

    def __init__(self) -> None:
        self.at = 0
        self.is_silent = False

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.at = offset

    def resume(self, tp: TopicPartition) -> None: ...
    def pause(self, tp: TopicPartition) -> None: ...

    def last_stable_offset(self, tp: TopicPartition) -> int:
        return 10

    async def beginning_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 0)

    async def end_offsets(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(tps, 10)

    async def getmany(self, tp: TopicPartition, **_: Any) -> dict[TopicPartition, list[Stored]]:
        some = [Stored(offset) for offset in range(self.at, min(self.at + 5, 10))]
        self.at += len(some)
        return {tp: some} if some else {}

    async def position(self, tp: TopicPartition) -> int:
        if self.is_silent:
            self.is_silent = False
            raise TimeoutError
        return self.at


class TopicIds:
    async def of(self, topics: list[str], once: bool) -> dict[str, str]:
        return dict.fromkeys(topics, "id")


@pytest.mark.feature("C40", "C52")
def test_what_was_read_before_the_position_became_unknown_is_read_again() -> None:
    consumer, topic_ids = Consumer(), TopicIds()
    reader = LogReader("", {}, topic_ids)  # type: ignore[arg-type]
    reader._consumers[TP] = consumer  # type: ignore[assignment]

    async def read() -> list[int]:
        await reader.read("t", 0, 0, 2)
        consumer.is_silent = True
        return [record.offset for record in await reader.read("t", 0, 5, 9)]

    assert asyncio.run(read()) == [5, 6, 7, 8, 9]

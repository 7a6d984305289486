"""Letters of removals that say the same are made together, and each keeps its own subject (C27, C60, D3)."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.generation import FIRST_REWOUND
from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.step import Messages, Removal
from lapse.core.reason import Reason
from lapse.runtime.letters.refusal import Refusal
from lapse.runtime.queue.gathered_removals import Subjects, gathered
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from support.kafka.noted_broker import Payloads
from support.kafka.packed import outputs_of
from unit.core.sow.make import Arrived, T
from unit.runtime.queue.machine_alone import note_letters

_SETTINGS = QueueSettings(
    name="prices", lease_ms=60_000, dead_letter_topic="dlq.prices", expiration=Expiration(enabled=True)
)
_RARE = 500


def _removal(offsets: list[int], partition: int = 0, detail: str = "") -> Removal:
    numbers = np.array(offsets, np.int64)
    deadlines_ms = numbers + T if partition == 0 and offsets[0] % 2 else None
    counts = (numbers % 3).astype(np.uint32)
    messages = Messages("prices", partition, numbers, deadlines_ms, counts, None)
    return Removal(messages, (Reason.TIME_LIMIT,), T, True, detail, places=numbers * 2)


_OFFSETS = st.lists(st.integers(0, 60) | st.integers(FIRST_REWOUND, FIRST_REWOUND + 9), min_size=1, max_size=5)
_REMOVALS = st.lists(st.builds(_removal, _OFFSETS, st.integers(0, 1), st.sampled_from(["", "why"])), max_size=8)


@pytest.mark.feature("D3", "C60", "C2")
@given(_REMOVALS)
def test_each_message_of_a_step_is_gathered_once_with_its_own_facts(removals: list[Removal]) -> None:
    subjects, expected = Subjects(), []
    for some in gathered(removals):
        messages = some.removal.messages
        subjects.add(some, 0, len(messages))
        expected += [
            (messages.topic, messages.partition, offset, count, some.removal.detail)
            for offset, count in zip(messages.offsets.tolist(), messages.deliveries.tolist(), strict=True)
        ]
    found = [
        (
            of.messages.topic,
            of.messages.partition,
            int(of.messages.offsets[at]),
            int(of.messages.deliveries[at]),
            of.detail,
        )
        for of, at in subjects
    ]
    assert found == expected
    given_ones = [(id(one), at) for one in removals for at in range(len(one.messages))]
    assert [(id(one), at) for one, at in subjects] == given_ones, "in the order in which they left (C2)"


def _machine_with(count: int) -> QueueMachine:
    """A queue with messages in three segments, every 500th of which expires soon."""
    output = QueueOutput("prices", 0, 1, "dlq.prices", 1)
    payloads: Any = Payloads()
    machine = QueueMachine(_SETTINGS, restore([]), 1, payloads, output, "prices")
    lifetimes_ms = [50 if n % _RARE == 0 else 90_000 for n in range(count)]
    headers = [[("lapse-ttl-ms", b"%d" % ms)] for ms in lifetimes_ms]
    machine.arrive("prices", 0, [Arrived(n, T, b"k", b"%d" % n, headers[n]) for n in range(count)])
    return machine


@pytest.mark.feature("C60", "D3")
def test_letters_of_messages_in_several_segments_are_made_at_once_and_a_refused_one_stays() -> None:
    count = 2 * SIZE + 10
    machine = _machine_with(count)
    made = note_letters(machine)
    written: list[int] = []

    async def write(some: Any) -> dict[int, Refusal]:
        values = [int(letter.value or b"-1") for letter in outputs_of(some)]
        refused = [at for at, value in enumerate(values) if value == SIZE - SIZE % _RARE + _RARE]
        written.extend(value for at, value in enumerate(values) if at not in refused)
        return {at: Refusal("too large") for at in refused}

    asyncio.run(machine.finish(write))
    machine.advance(T + 100)
    asyncio.run(machine.finish(write))
    due = list(range(0, count, _RARE))
    kept = SIZE - SIZE % _RARE + _RARE
    assert made == [len(due)], "one call for three segments"
    assert written == [offset for offset in due if offset != kept]
    assert list(machine.shard.state.pending) == [(0, kept)], "the first one of the second segment"

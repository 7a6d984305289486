"""The SOW machine between wire and core, without a broker."""

import asyncio

import orjson
import pytest

from lapse.protocol import event
from lapse.protocol.answer import decode as decode_answer
from lapse.protocol.command import Command, encode
from lapse.runtime.machine import Effects
from lapse.runtime.producer import Rows
from lapse.runtime.sow_machine import SowMachine
from lapse.runtime.sow_output import SowOutput
from unit.core.sow.make import Arrived, T, shard_of


def machine(default_ms: int | None = None, **settings: object) -> SowMachine:
    return SowMachine(shard_of(default_ms, **settings), SowOutput("prices", 0, 3, "dlq.prices", 1))


def finish(running: SowMachine) -> Effects:
    return asyncio.run(running.finish())


def rows(effects: Effects, topic: str) -> list[tuple[bytes | None, bytes | None, dict[str, bytes]]]:
    return [
        (key, value, dict(headers))
        for some in effects.before
        if isinstance(some, Rows) and some.topic == topic
        for key, value, headers in some.rows
    ]


@pytest.mark.feature("S8")
def test_a_large_step_goes_ahead_in_order_and_ends_in_a_small_batch():
    running = machine(max_step_bytes=100_000)
    ahead = running.maintain()
    records = [Arrived(n, T, b"k%d" % (n % 30), b"%d" % n + b"x" * 100_000) for n in range(60)]
    running.arrive("prices", 0, records)
    effects = finish(running)
    assert ahead
    assert sum(len(value or b"") for _, value in effects.journal) <= 1 << 20
    restored = shard_of()
    restored.restore([*ahead, *effects.journal])
    assert restored.state.entries == running.shard.state.entries
    assert len(rows(effects, "lapse.sow.prices")) == 30


@pytest.mark.feature("S4", "D4")
@pytest.mark.parametrize(("count", "events"), [(20, 20), (21, 1), (2000, 1)])
def test_many_removals_that_share_a_fate_are_told_by_ranges(count: int, events: int):
    running = machine(10)
    running.maintain()
    running.arrive("prices", 0, [Arrived(n, T, b"%d" % n, b"{}") for n in range(count)])
    running.advance(T + 10)
    told = [event.decode(one.value) for one in finish(running).before if not isinstance(one, Rows)]
    assert len(told) == events
    assert sum(len(some) for one in told for some in one.messages) == count
    assert {one.key is None for one in told} == {events == 1}


@pytest.mark.feature("X2", "S5")
@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_a_query_is_answered_in_its_commands_encoding(encoding: str):
    running = machine()
    running.maintain()
    running.take_over(T)
    headers = [("own", b"x"), ("lapse-ttl-ms", b"50"), ("ce_expirytime", b"2023-11-14T22:13:20.050Z")]
    running.arrive("prices", 0, [Arrived(7, T, b"k", b"{}", headers)])
    command = Command(command="sow", id="q")
    value = encode(command) if encoding == "avro" else orjson.dumps({"command": "sow", "id": "q"})
    running.command(Arrived(0, T + 1, None, value))
    running.advance(T)
    assert not running.deliver(T + 1)
    effects = finish(running)
    begin, record, end = rows(effects, "lapse.prices.deliveries")
    assert (begin[2]["lapse-kind"], end[2]["lapse-kind"]) == (b"group-begin", b"group-end")
    assert record == (
        b"k",
        b"{}",
        {
            "lapse-kind": b"sow",
            "lapse-subscription": b"",
            "lapse-epoch": b"3",
            "lapse-command-id": b"q",
            "lapse-bookmark": b"prices:0:7",
            "lapse-timestamp-ms": b"%d" % T,
            "lapse-expires-at-ms": b"%d" % (T + 50),
            "own": b"x",
        },
    )
    (answer,) = effects.after
    assert decode_answer(answer.value).counts == {"records": 1}
    assert (answer.value[:1] == b"{") == (encoding == "json")


@pytest.mark.feature("S9")
def test_no_query_is_answered_before_what_expired_meanwhile_is_removed():
    before = machine(10)
    before.maintain()
    before.arrive("prices", 0, [Arrived(0, T, b"k", b"{}")])
    running = machine(10)
    running.shard.restore(finish(before).journal)
    running.take_over(T + 500)
    running.command(Arrived(0, T + 400, None, b'{"command": "sow", "id": "q"}'))
    assert not running.deliver(T + 501)
    assert [row[2]["lapse-kind"] for row in rows(finish(running), "lapse.prices.deliveries")] == [b"group-begin"]
    running.advance(T + 502)
    running.deliver(T + 502)
    effects = finish(running)
    assert [row[:2] for row in rows(effects, "lapse.sow.prices")] == [(b"k", None)]
    assert [row[2]["lapse-kind"] for row in rows(effects, "lapse.prices.deliveries")] == [b"group-end"]


@pytest.mark.feature("X7")
def test_a_command_that_cannot_be_read_is_answered():
    running = machine()
    running.command(Arrived(0, T, None, b'{"command": "sow", "id": "7", "nonsense": 1}'))
    (answer,) = finish(running).after
    assert decode_answer(answer.value).id == "7"
    assert "nonsense" in decode_answer(answer.value).error

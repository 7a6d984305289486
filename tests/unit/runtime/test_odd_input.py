"""Whatever anybody writes to the topics of a queue or SOW topic, its machine answers, refuses or passes over (X7)."""

import json
import random
from typing import Any

import orjson
import pytest

from lapse.core.expression import compile_filter, compile_value
from lapse.core.queue.arrival.trait import TraitReader
from lapse.protocol import command as commands
from lapse.protocol import header, topic
from lapse.protocol.command import FIELDS, QUEUE_COMMANDS, SOW_COMMANDS, Command
from lapse.protocol.command_field import QUEUE_STATES
from lapse.protocol.tick import TICK_KEY
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.shard.sweeps import Sweeps
from support.suite.at_length import alike
from unit.runtime.bad_input import ARRIVAL_MS, Input, finish, queue, sow

pytestmark = pytest.mark.feature("X7")

LAST = (1 << 63) - 1
DEEP = b"[" * 900 + b"]" * 900

ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, LAST, LAST + 1, 10**30, 1.5, 1e308, float("nan"), "", "s", "self", "é\u0660", "\ud800", "\0",
    "x" * 501, [], {}, [[]], [None], [1], {"a": {}}, ["prices:0:0"], ["\u0660:0:1"], ["prices:0:\u0660"],
)  # fmt: skip

FITTING: dict[str, tuple[Any, ...]] = {
    "bookmarks": (
        ["prices:0:0"], ["prices:0:0-3"], [f"prices:0:0-{LAST}"], ["prices:0:0-3~1"], ["other:7:0-100000"], [],
        ["prices:0:1>other:0:1"], ["prices:0:0-9000000000000000000>p:0:0-9000000000000000000"],
        ["prices:0:0#9999999999@999999999999999999"], ["a:0:0"] * 50,
    ),
    "filter": (
        "TRUE", "FALSE", "/price / 0 = 1", "/price REGEXP '('", "ROUND(1e308, 300) > 1", "/price * 1e308 * 1e308 > 1",
        "ABS(-9223372036854775808) = 1", "/price = " + "9" * 40, "'\u0660' = 1", "NOT", "(((",
        "1=1 AND " * 200 + "TRUE",
    ),
    "select": (["/price"], ["-/price"], ["/a/b", "/a"], [""]),
    "order_by": ("/price", "/price DESC", "1/0"),
    "to": ("beginning", "end", "prices:0:0", "2026-01-01T00:00:00Z", str(LAST), "\u0661", "99999-01-01T00:00:00Z"),
    "keys": (["k"], ["self"], [""], ["\0"]),
    "data": (["{}"], ['{"symbol": "A"}']),
    "state": (*QUEUE_STATES, ""),
    "transfer": ("t", "u", ".", "a/b", ""),
    "subscription": ("s", "t", "self", ""),
    "payload": ("inline", "packed", "reference"),
    "answer": ("all", "errors", "none"),
    "lifetimes": ("new", "kept"),
    **dict.fromkeys(("max_backlog", "delay_ms", "top_n", "skip", "least_life_ms"), (0, 1, LAST)),
    **dict.fromkeys(("heartbeat_timeout_ms", "lease_ms", "batch_size", "version"), (1, 1_000, LAST)),
    **dict.fromkeys(("leased", "force", "handed_over", "dry_run", "spare"), (False, True)),
}  # fmt: skip

NAMES = ("self", "cls", "__class__", "__init__", "fields", "record", "name", "", "é")

HEADERS = tuple(
    value for name, value in vars(header).items() if name.isupper() and isinstance(value, str) and name != "PREFIX"
)
STATED = (
    None, b"", b"0", b"1", b"-1", b"9" * 19, b"%d" % LAST, b"1" * 5_000, "\u0661".encode(), b"\xff", b"prices/t",
    b"1,2", b"999999999999,1", b"9999-12-31T23:59:60.999999999-23:59", b"0000-01-01T00:00:00Z", b"\0\0\0\1", b"\0" * 8,
    b"delta",
)  # fmt: skip
VALUES = (
    None, b"", b"{}", b"[]", b"1", b"null", b'{"price": 1}', b'{"price": 1e308}', b'{"price": %b}' % (b"9" * 5_000),
    b'{"price": NaN}', b'{"price": "\\ud800"}', b"\xff\xfe", b'{"a": {"b": %b}}' % DEEP, b'{"price": %b}' % DEEP, DEEP,
    b'{"price": "A", "a": {"b": {"c": null}}}', b'{"price": "%b"}' % (b"x" * 3_000), b'{"": 1, "price": true}',
)  # fmt: skip

SAID: dict[str, tuple[Any, ...]] = {
    "kind": ("ask", "check", "report", "released", "gone", "x", []),
    "id": (1, ARRIVAL_MS, 10**30, "a", None),
    "sender": (0, 0, 1, -1, 10**30, "0", None),
    "to": (0, 1),
    "cause": ("delete", "idle", "x"),
    "force": (False, True, 1),
    "report": (
        None, 1, [], {}, {"willing": True, "holders": []}, {"willing": False, "holders": [], "counts": []},
        {"willing": False, "holders": [{"subscription": "a", "client": "b", "count": "x", "until_ms": 1}]},
        {"willing": False, "holders": [{"subscription": "\ud800", "client": "b", "count": 1, "until_ms": LAST}]},
    ),
}  # fmt: skip


def odd_command(dice: random.Random, known: list[str]) -> bytes:
    record: dict[str, Any] = {"command": dice.choice(known), "id": dice.choice("rt"), "subscription": "s"}
    for name in dice.sample(FIELDS[1:], dice.randrange(5)):
        record[name] = dice.choice(FITTING.get(name, ODD) if dice.random() < 0.9 else ODD)
    if dice.random() < 0.05:
        record[dice.choice((*NAMES, "command"))] = dice.choice(ODD)
    if dice.random() < 0.3:
        try:
            return commands.encode(Command.of(**record))
        except (ValueError, TypeError):  # `cls` and the like are no fields
            pass
    return json.dumps(record).encode()[: None if dice.random() < 0.98 else 20]


def odd_message(dice: random.Random) -> bytes | None:
    record = {name: dice.choice(some) for name, some in SAID.items()}
    if dice.random() < 0.2:
        record[dice.choice(NAMES)] = dice.choice(ODD)
    return dice.choice((json.dumps(record).encode(), json.dumps(record).encode(), None, b"[]", b"[" * 100_000))


def odd_record(dice: random.Random, offset: int, now_ms: int) -> Input:
    headers = [(dice.choice(HEADERS), dice.choice(STATED)) for _ in range(dice.randrange(4))]
    at_ms = dice.choice((now_ms, now_ms, now_ms, -1, 0, LAST))
    return Input(offset, dice.choice((None, b"", b"k", b"\xff")), dice.choice(VALUES), headers, at_ms)


def goes_on(dice: random.Random, machine: Any, known: list[str]) -> None:
    """Some steps, in which anything comes."""
    offset, place, now_ms, sweeps = 0, 0, ARRIVAL_MS, Sweeps(1 << 40)
    own: list[bytes] = []
    for _ in range(12):
        machine.begin_step()
        for _ in range(dice.randrange(3)):
            machine.arrive("prices", 0, [odd_record(dice, offset, now_ms)])
            offset += 1
        for _ in range(dice.randrange(4)):
            now_ms += dice.choice((0, 1, 100, 5_000))
            said = dice.random() < 0.1
            key = SHARD_MESSAGE_KEY if said else dice.choice((None, b"", b"x", TICK_KEY + b"."))
            value = odd_message(dice) if said else odd_command(dice, known)
            one = Input(place, key, value, [(dice.choice(HEADERS), dice.choice(STATED))], now_ms)
            sweeps.note([one])
            machine.command(one)
            place += 1
        for value in own:  # what it has said to its shards, of which it is the only one
            machine.command(Input(place, SHARD_MESSAGE_KEY, value, [], now_ms))
            place += 1
        machine.continue_command()
        machine.advance(now_ms)
        machine.deliver(now_ms)
        effects = finish(machine)
        written = [one for one in effects.after if isinstance(one, Output) and one.topic == topic.commands("prices")]
        assert all(one.partition == 0 for one in written), "there is no other partition"
        own = [one.value for one in written if one.key == SHARD_MESSAGE_KEY and one.value is not None]
        if machine.stopped:  # nothing comes any more
            return


@pytest.mark.parametrize("seed", alike(*range(3)))
def test_a_queue_goes_on_whatever_comes(seed: int) -> None:
    dice = random.Random(seed)
    traits = TraitReader(compile_value("/price"), compile_filter("/price = 1"), compile_value("/a"))
    known = sorted(QUEUE_COMMANDS)
    for _ in range(10):
        settings = dice.choice(({}, {"traits": traits}, {"target_depth": 1}, {"max_deliveries": 1, "lease_ms": 100}))
        goes_on(dice, queue(parse=orjson.loads, **settings), known)


@pytest.mark.parametrize("seed", alike(*range(3)))
def test_a_sow_topic_goes_on_whatever_comes(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(10):
        settings = dice.choice(({}, {"key": (("price",),)}, {"added_partitions": True}, {"remembers_removed": True}))
        goes_on(dice, sow(**settings), sorted(SOW_COMMANDS))

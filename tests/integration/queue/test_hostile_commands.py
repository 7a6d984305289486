"""Commands and records that are wrong in any number of places stop nobody, and fill no log (X7)."""

import json

import pytest

from lapse.protocol import topic
from lapse.protocol.command import Command, encode
from lapse_client import SowClient
from support.kafka.log import until, write
from support.processes.deployment import Deploy, Deployment

COMPRESSED = {"compression.type": "zstd", "message.max.bytes": 100_000_000}


@pytest.fixture(scope="module")
def here(deploy: Deploy) -> Deployment:
    """A deployment with a worker that all tests share."""
    made = deploy({})
    queues = {"orders": {}, "others": {}, "named": {}, "hostile": {"priority": "/n", "expiration": "enabled"}}
    made.configure(queues, {"prices": {"key": "/symbol", "expiration": "enabled"}})
    made.apply().worker().wait_for_shards(5)
    return made


@pytest.mark.feature("X7", "X2")
def test_hundreds_of_thousands_of_unknown_fields_stop_no_entity(here: Deployment) -> None:
    worker = here.workers[0]
    fields = {f"f{at}": 1 for at in range(120_000)}
    fields["id"] = "big"  # type: ignore[assignment]
    commands = topic.commands(here.name("orders"))
    answers = here.tail(topic.deliveries(here.name("orders")), from_end=True)
    body = json.dumps(fields).encode()
    write(here.servers, commands, [body], **COMPRESSED)
    assert here.depth("others")["depth"] == 0, "who compares every fault with every field keeps the worker for longer"

    def refusal() -> dict[str, object] | None:
        values = [message.value() or b"" for message in answers.drain()]
        return next((json.loads(value) for value in values if b'"big"' in value), None)

    refused: list[dict[str, object]] = []
    until(lambda: (one := refusal()) is not None and not refused.append(one), "the answer", 20)
    assert "field f0: unknown" in str(refused[0]["error"])
    assert "more faults" in str(refused[0]["error"])
    write(here.servers, commands, [b'{"command": "depth", "nonsense": %d}' % at for at in range(500)])
    until(lambda: "only counted for a minute" in worker.text, "the refusals are counted")
    assert here.depth("orders")["depth"] == 0
    lines = [line for line in worker.text.splitlines() if "refused" in line and commands[6:-9] in line]
    assert len(lines) == 10
    assert max(map(len, lines)) < 1_500


@pytest.mark.feature("X7", "C60", "Q8")
def test_a_command_that_names_the_same_messages_over_and_over_is_refused_and_stops_nobody(here: Deployment) -> None:
    """Each range is looked up by itself: 20,000 of them over a long queue took the worker minutes."""
    name = here.name("named")
    here.write("named", *[b"x"] * 5_000)
    until(lambda: here.depth("named")["depth"] == 5_000, "all arrived")
    answers = here.tail(topic.deliveries(name), from_end=True)
    commands = [
        json.dumps({"command": action, "id": action, "subscription": "s", "bookmarks": [f"{name}:0:0-4999"] * 20_000})
        for action in ("acknowledge", "renew")
    ]
    write(here.servers, topic.commands(name), [one.encode() for one in commands], **COMPRESSED)

    def errors() -> dict[str, str]:
        found = [json.loads(one.value() or b"") for one in answers.drain() if b'"code"' in (one.value() or b"")]
        return {one["id"]: one["code"] for one in found if one["id"] in ("acknowledge", "renew")}

    until(lambda: len(errors()) == 2, "both are answered", 60)
    assert set(errors().values()) == {"too_costly"}
    assert here.depth("named")["depth"] == 5_000


LONG = b"9" * 900_000
UNREADABLE = {
    "lists": (b'{"symbol":' + b"[" * 400_000 + b"]" * 400_000 + b"}", "depth limit exceeded"),
    "lists without end": (b"[" * 900_000, "depth limit exceeded"),
    "objects": (b'{"symbol":' * 50_000 + b"1" + b"}" * 50_000, "depth limit exceeded"),
    "digits": (b'{"symbol":' + LONG + b"}", "number is infinity"),
    "an exponent": (b'{"symbol":1e' + LONG + b"}", "number is infinity"),
    "fields": (b"{" + b",".join(b'"%d":0' % at for at in range(70_000)) + b"}", "the key field /symbol is missing"),
    "half a character": (b'{"symbol":"\\ud800"}', "no low surrogate"),
    "a long key": (b'{"symbol":"' + LONG + b'"}', "the key has 900,004 bytes; 32,768 is the most"),
}
"""Payloads, and what their letters say where the key is in the payload."""

LIFETIMES = ("lapse-ttl-ms", "lapse-enqueue-at-ms", "ce_expirytime")
ODD_HEADERS = [
    [(f"h{at}", b"v") for at in range(10_000)],
    [("n" * 30_000, LONG), ("", b""), ("lapse-message-id", LONG)],
    [("lapse-retry-delay-ms", LONG), ("traceparent", b"\xff"), ("lapse-delivery-count", b"9" * 5_000)],
    [("lapse-reasons", b"\xff\x00"), ("lapse-message-id", None)],
]
"""Headers that nothing is wrong with, or that do not count."""

OF_SOW_TOPICS = ("lapse-command", "lapse-origin")
"""Headers that mean something to SOW topics only."""


@pytest.mark.feature("X7", "S1", "L12", "D1", "Q1")
def test_records_with_deep_long_and_odd_parts_are_letters_or_messages_and_stop_nobody(here: Deployment) -> None:
    name, prices = here.name("hostile"), here.name("prices")
    for payload, _ in UNREADABLE.values():
        for stem in (name, prices):
            write(here.servers, stem, [payload], **COMPRESSED)
    stated = [[(one, LONG)] for one in LIFETIMES] + [[("lapse-ttl-ms", b"1000000")] * 2 + [("lapse-ttl-ms", None)]]
    good = b'{"symbol":"good","n":7}'
    for headers in (*stated, *ODD_HEADERS, ()):
        for stem in (name, prices):
            write(here.servers, stem, [good], headers=headers, key=LONG if headers == () else None, **COMPRESSED)
    for one in OF_SOW_TOPICS:
        write(here.servers, prices, [good], headers=[(one, b"\xff" * 900_000)], **COMPRESSED)
    for stem in (name, prices):
        write(here.servers, stem, [bytes(50 << 20)], key=b"k", **COMPRESSED)  # two kilobytes in Kafka
    with SowClient(prices, connection=here.connection) as client:
        until(lambda: [one.value for one in client.query("/n = 7")] == [good], "the good one", 60)
    with here.subscriber("hostile", 50, filter="LENGTH(/symbol) > 3") as subscriber:
        got = []
        while len(got) < 6 and (delivery := subscriber.receive(30)) is not None:
            got.append(delivery.value)
            delivery.acknowledge()
    assert sorted(got) == sorted([UNREADABLE["a long key"][0], *[good] * 5])
    letters = here.letters("prices", len(UNREADABLE) + len(stated) + 3)
    reported = [dict(one.headers() or ()) for one in letters]
    undecodable = [*reported[: len(UNREADABLE)], *reported[-3:]]
    texts = [*(text for _, text in UNREADABLE.values()), *OF_SOW_TOPICS, "uncompressed"]
    for letter, text in zip(undecodable, texts, strict=True):
        assert letter["lapse-reasons"] == b"undecodable"
        assert text in letter["__dlq.errors.message"].decode()
    assert letters[-1].value() is None, "Kafka has it"
    *invalid, unread = (dict(one.headers() or ()) for one in here.letters("hostile", len(stated) + 1))
    assert unread["lapse-reasons"] == b"undecodable"
    assert b"uncompressed" in unread["__dlq.errors.message"]
    for letter in (*invalid, *reported[len(UNREADABLE) : -3]):
        assert letter["lapse-reasons"] == b"invalid_lifetime"
    assert max(len(letter["__dlq.errors.message"]) for letter in (*invalid, *reported)) <= 1_000, (
        "nothing is echoed whole"
    )
    assert here.depth("hostile")["depth"] == len(UNREADABLE) - 1, "what no filter can read stays, for whoever takes all"
    assert here.workers[0].running


@pytest.mark.feature("X7", "X2")
def test_commands_with_deep_long_and_damaged_parts_are_answered(here: Deployment) -> None:
    answers = here.tail(topic.deliveries(here.name("others")), from_end=True)
    whole = encode(Command(command="depth", id="whole"))
    endless = b"\x80" * 8 + b"\x20"  # 2 to the power of 60, as a length or a count
    refused = [
        *(b"[" * 500_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        b'{"command":"depth","id":"list","filter":' + b"[" * 1_000 + b"]" * 1_000 + b"}",
        b'{"command":"depth","id":"digits","top_n":' + LONG + b"}",
        b'{"command":"depth","id":"size","filter":"' + b"a" * 20_000_000 + b'"}',
        *(b"\xc3\x01" + b"\xff" * 1_000, b"\x00\x00\x00\x00\x01" + b"\xff" * 100),
        *(whole[:at] + endless + whole[at:] for at in range(10, len(whole))),
        *(whole[:at] for at in range(1, len(whole))),
    ]
    commands = topic.commands(here.name("others"))
    write(here.servers, commands, refused, **COMPRESSED)
    taken = {b"headers": [(f"h{at}", b"v") for at in range(10_000)], b"user": [("lapse-user", LONG)], b"key": ()}
    for ident, headers in taken.items():
        body = b'{"command":"depth","id":"%s"}' % ident
        write(here.servers, commands, [body], headers=headers, key=LONG if ident == b"key" else None)
    write(here.servers, commands, [whole])
    failures = answers.wait_for(lambda all_of_them: len(all_of_them) > len(refused) + len(taken), "answers to all", 60)
    named = {value for message in failures for value in (message.headers() or ()) if value[0] == "lapse-command-id"}
    assert {value for _, value in named} >= {b"whole", *taken}
    statuses = [b'"status":"ok"' in (one.value() or b"") or b"\x04ok\x00" in (one.value() or b"") for one in failures]
    assert statuses == [False] * len(refused) + [True] * (len(taken) + 1)
    assert all(len(one.value() or b"") < 2_000 for one in failures), "nothing of it is echoed whole"

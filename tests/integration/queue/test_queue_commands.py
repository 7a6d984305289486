"""Commands from any Kafka client: JSON that a person can type, Avro, and everything that is neither."""

import struct

import orjson
import pytest

from lapse.protocol import answer as answers
from lapse.protocol import codec
from lapse.protocol import command as commands
from lapse.protocol.command import Command
from support.consumers.kcat import Kcat
from support.kafka.log import header, texts
from support.processes.deployment import Deployment, broker_now_ms

QUEUES = {
    "plain": {"lease_period": "60s"},
    "peeked": {"expiration": "enabled"},
    "avro": {},
    "bad": {},
    "huge": {},
    "silent": {},
    "wide": {"partitions": 2},
    "heavy": {"expiration": "enabled"},
    "beats": {"heartbeat_timeout": "60s"},
}


@pytest.mark.feature("X2", "Q3", "Q8", "D4")
def test_subscribe_receive_and_settle_with_json_alone(served: Deployment) -> None:
    """Six lines with kcat: subscribe, read the delivery and its bookmark, acknowledge, cancel, renew, unsubscribe."""
    kcat = Kcat(served, "plain")
    subscribed = kcat.ask("subscribe", subscription="me", client="kcat on my desk", max_backlog=2)
    assert subscribed["status"] == "ok"
    assert subscribed["counts"]["max_backlog"] == 2
    assert subscribed["counts"]["lease_ms"] == 60_000
    written = served.write("plain", "first", "second", "third", key=b"k", headers=[("h", b"1")])
    first, second = kcat.deliveries(2, "me")
    assert (first.value(), first.key()) == (b"first", b"k")
    facts = texts(first)
    assert facts["lapse-bookmark"] == served.bookmark("plain", written[0])
    assert facts["lapse-delivery-count"] == "1"
    assert facts["lapse-timestamp-ms"] == str(written[0].timestamp_ms)
    assert facts["h"] == "1"
    assert int(facts["lapse-lease-until-ms"]) > broker_now_ms() + 30_000
    done = kcat.ask("acknowledge", subscription="me", bookmarks=[facts["lapse-bookmark"]])
    assert done["settlements"] == [{"bookmarks": facts["lapse-bookmark"], "result": "settled"}]
    assert kcat.deliveries(3, "me")[2].value() == b"third"
    place = texts(second)["lapse-bookmark"]
    renewed = kcat.ask("renew", subscription="me", bookmarks=[f"{place}#1"], lease_ms=30_000)
    assert renewed["lease_until_ms"] > broker_now_ms() + 10_000
    back = kcat.ask("cancel", subscription="me", bookmarks=[f"{place}#1"])
    assert back["settlements"][0]["result"] == "settled"
    assert texts(kcat.deliveries(4, "me")[3])["lapse-delivery-count"] == "2"
    gone = kcat.ask("unsubscribe", subscription="me")
    assert gone["status"] == "ok"
    figures = kcat.ask("depth")["counts"]
    assert (figures["available"], figures["leased"], figures["depth"]) == (2, 0, 2)


@pytest.mark.feature("X2", "Q15", "L11")
def test_depth_and_peek_in_json(served: Deployment) -> None:
    """`sow` shows state, deadline and counts in order, a page at a time; expired messages are not in it."""
    kcat = Kcat(served, "peeked")
    later_ms = broker_now_ms() + 3_600_000
    served.write("peeked", "a", headers=[("lapse-expires-at-ms", str(later_ms).encode())])
    served.write("peeked", "b", "c")
    (scheduled,) = served.write("peeked", "d", headers=[("lapse-enqueue-at-ms", str(later_ms).encode())])
    kcat.ask("subscribe", subscription="one", heartbeat_timeout_ms=60_000)
    (delivery,) = kcat.deliveries(1, "one")
    shown = kcat.ask("sow")
    assert [message["state"] for message in shown["messages"]] == ["leased", "available", "available", "scheduled"]
    leased, *_, last = shown["messages"]
    assert leased["subscription"] == "one"
    assert leased["until_ms"] == int(texts(delivery)["lapse-lease-until-ms"])
    assert leased["expires_at_ms"] == later_ms
    assert leased["delivery_count"] == 1
    assert last["bookmark"] == served.bookmark("peeked", scheduled)
    assert kcat.ask("sow", skip=1, top_n=1)["messages"] == [shown["messages"][1]]
    assert kcat.ask("sow", top_n=0)["messages"] == []
    figures = kcat.ask("depth")
    assert {name: figures["counts"][name] for name in ("available", "leased", "scheduled", "depth")} == {
        "available": 2,
        "leased": 1,
        "scheduled": 1,
        "depth": 3,
    }
    assert figures["publish_target"] == served.name("peeked")


LAPSE = {"command_schema_id": 7, "answer_schema_id": 8}


@pytest.mark.feature("X2")
def test_avro_is_answered_in_avro(served: Deployment) -> None:
    kcat = Kcat(served, "avro")
    kcat.send(commands.encode(Command(command="depth", id="avro-1")))
    kcat.tail.wait_for(lambda _: kcat.answers(), "an answer")
    (message,) = kcat.answers()
    assert codec.is_avro(message.value() or b"")
    assert answers.decode(message.value() or b"").status == "ok"


@pytest.mark.feature("X2")
def test_confluents_wire_format_is_answered_in_it(served: Deployment) -> None:
    body = commands.encode(Command(command="depth", id="confluent-1"))[codec.HEADER_BYTES :]
    kcat = Kcat(served, "avro")
    kcat.send(b"\0\0\0\0\x07" + body)
    kcat.tail.wait_for(lambda _: kcat.answers(), "an answer")
    value = kcat.answers()[0].value() or b""
    assert value[:5] == b"\0\0\0\0\x08"
    answer = codec.decode("answer", codec.header("answer") + value[5:])
    assert (answer["id"], answer["status"], answer["error"]) == ("confluent-1", "ok", "")


BAD = {
    "no JSON": (b"hello", "neither Avro"),
    "empty": (b"", "empty record"),
    "half JSON": (b'{"command": "depth", ', "neither Avro"),
    "a list": (b"[1, 2]", "expected a JSON object"),
    "a number": (b"42", "expected a JSON object"),
    "null": (b"null", "expected a JSON object"),
    "binary": (bytes(range(256)), "its schema id is 16909060, and command_schema_id is 7"),
    "no command": (b'{"id": "ID"}', "command"),
    "unknown command": (b'{"command": "acknowlegde", "id": "ID"}', "acknowledge"),
    "typo in a field": (b'{"command": "subscribe", "id": "ID", "max_backlg": 3}', "max_backlg"),
    "wrong type": (b'{"command": "subscribe", "id": "ID", "subscription": "s", "max_backlog": "3"}', "max_backlog"),
    "negative": (b'{"command": "subscribe", "id": "ID", "subscription": "s", "max_backlog": -1}', "max_backlog"),
    "huge number": (b'{"command": "subscribe", "id": "ID", "subscription": "s", "max_backlog": 9e99}', "max_backlog"),
    "int64": (
        b'{"command": "subscribe", "id": "ID", "subscription": "s", "max_backlog": 9223372036854775807}',
        None,
    ),
    "int64 heartbeat": (
        b'{"command": "subscribe", "id": "ID", "subscription": "s2", "heartbeat_timeout_ms": 9223372036854775807}',
        None,
    ),
    "beyond int64": (
        b'{"command": "subscribe", "id": "ID", "subscription": "s", "max_backlog": 9223372036854775808}',
        "max_backlog",
    ),
    "endless delay": (
        b'{"command": "cancel", "id": "ID", "bookmarks": ["t:0:1"], "delay_ms": 9223372036854775807}',
        None,
    ),
    "no subscription": (b'{"command": "subscribe", "id": "ID"}', "subscription is required"),
    "no bookmarks": (b'{"command": "acknowledge", "id": "ID"}', "bookmarks"),
    "bad bookmark": (b'{"command": "acknowledge", "id": "ID", "bookmarks": ["orders/0/17"]}', "topic:partition:offset"),
    "backward range": (b'{"command": "acknowledge", "id": "ID", "bookmarks": ["t:0:9-3"]}', "ends before"),
    "offset too large": (
        b'{"command": "acknowledge", "id": "ID", "bookmarks": ["t:0:9999999999999999999"]}',
        "63 bits",
    ),
    "unknown heartbeat": (b'{"command": "heartbeat", "id": "ID", "subscription": "nobody"}', "subscribe again"),
    "unknown unsubscribe": (b'{"command": "unsubscribe", "id": "ID", "subscription": "nobody"}', "unknown"),
    "a SOW command": (b'{"command": "sow_and_subscribe", "id": "ID"}', "unknown command"),
    "text with NUL": (b'{"command": "subscribe", "id": "ID", "subscription": "a\\u0000b"}', None),
    "cut Avro": (commands.encode(Command(command="depth"))[:12], "damaged"),
    "long Avro": (commands.encode(Command(command="depth")) + b"!", "too many"),
    "other schema": (codec.MARKER + struct.pack("<Q", 1) + b"x", "Avro"),
}


@pytest.mark.feature("X2", "X7")
@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_command_is_answered_with_its_fault_and_the_worker_goes_on(served: Deployment, name: str) -> None:
    """Whoever sent it learns what is wrong; the next command is carried out."""
    value, words = BAD[name]
    kcat = Kcat(served, "bad")
    ident = f"bad-{abs(hash(name))}"
    before = len(kcat.tail.drain())
    kcat.send(value.replace(b"ID", ident.encode()))
    kcat.tail.wait_for(lambda records: len(records) > before, "an answer")
    (message,) = kcat.answers()[-1:]
    answer = answers.decode(message.value() or b"")
    if words is not None:
        assert answer.status == "error"
        assert words in answer.error
    if b"ID" in value:
        assert answer.id == ident
        assert header(message, "lapse-command-id") == ident.encode()
    assert kcat.ask("depth")["status"] == "ok"
    assert served.workers[0].running


@pytest.mark.feature("X7", "Q8")
def test_commands_of_any_size_are_answered_and_stop_nobody(served: Deployment) -> None:
    """Megabytes in an id, in a subscription's name, in a list of bookmarks: an answer each, and no crash loop."""
    kcat = Kcat(served, "huge")
    large = {"message.max.bytes": 8_000_000}
    written = served.write("huge", *(str(number) for number in range(50)))
    name = served.name("huge")
    kcat.send(orjson.dumps({"command": "depth", "id": "x" * 2_500_000}), **large)
    assert kcat.ask("depth")["counts"]["depth"] == 50
    kcat.send(orjson.dumps({"command": "subscribe", "id": "long", "subscription": "s" * 2_500_000}), **large)
    assert kcat.answer("long")["status"] == "error"
    many = [f"{name}:0:{written[-1].offset + 1 + number}" for number in range(100_000)]
    kcat.send(orjson.dumps({"command": "acknowledge", "id": "many", "bookmarks": many[:50_000]}), **large)
    assert "20,000" in kcat.answer("many")["error"]
    kcat.send(orjson.dumps({"command": "acknowledge", "id": "more", "bookmarks": many}), **large)
    assert "a command has 2,097,152 at most" in kcat.answer("more")["error"]
    kcat.send(orjson.dumps({"command": "acknowledge", "id": "most", "bookmarks": many[:20_000]}), **large)
    assert kcat.answer("most")["settlements"][0]["result"] == "unknown"
    kcat.send(orjson.dumps({"command": "acknowledge", "id": "all", "bookmarks": [f"{name}:0:0-9223372036854775806"]}))
    assert kcat.answer("all")["settlements"][0] == {
        "bookmarks": f"{name}:0:0-{written[-1].offset}",
        "result": "settled",
    }
    assert kcat.ask("depth")["counts"]["depth"] == 0
    assert served.workers[0].running


@pytest.mark.feature("X7", "D2")
def test_a_message_as_large_as_its_topic_allows_is_delivered_and_can_die(served: Deployment) -> None:
    """A megabyte by default; it passes, and its dead letter too."""
    value = b"v" * 1_000_000
    served.write("heavy", value, **{"message.max.bytes": 2_000_000})
    with served.subscriber("heavy", 1) as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert delivery.value == value
        subscriber.settle("expire", [delivery], wait=True)
    (letter,) = served.letters("heavy", 1)
    assert letter.value() == value


@pytest.mark.feature("X2")
def test_answers_come_as_far_as_they_are_wanted(served: Deployment) -> None:
    """`none`: no answer at all, not even to an error; `errors`: refusals only."""
    kcat = Kcat(served, "silent")
    (written,) = served.write("silent", "x")
    place = served.bookmark("silent", written)
    kcat.ask("depth")
    kcat.send(orjson.dumps({"command": "depth", "id": "quiet", "answer": "none"}))
    kcat.send(orjson.dumps({"command": "renew", "id": "quiet", "answer": "none"}))
    kcat.send(orjson.dumps({"command": "acknowledge", "id": "fine", "answer": "errors", "bookmarks": [place]}))
    kcat.send(orjson.dumps({"command": "acknowledge", "id": "late", "answer": "errors", "bookmarks": [place]}))
    assert kcat.answer("late")["settlements"] == [{"bookmarks": place, "result": "already_settled"}]
    kcat.ask("depth")
    assert not {b"quiet", b"fine"} & {header(one, "lapse-command-id") for one in kcat.answers()}


@pytest.mark.feature("X2", "Q17")
def test_each_partition_answers_for_itself(served: Deployment) -> None:
    served.write("wide", "a", partition=1)
    zero, one = Kcat(served, "wide", 0), Kcat(served, "wide", 1)
    assert (zero.ask("depth")["partition"], one.ask("depth")["partition"]) == (0, 1)
    one.tail.wait_for(lambda _: one.ask("depth")["counts"]["depth"] == 1, "the message")
    assert zero.ask("depth")["counts"]["depth"] == 0


@pytest.mark.feature("C20", "Q3")
def test_subscribing_again_replaces_the_options_and_keeps_the_leases(served: Deployment) -> None:
    kcat = Kcat(served, "beats")
    served.write("beats", *(str(number) for number in range(5)))
    kcat.ask("subscribe", subscription="again", max_backlog=1)
    kcat.deliveries(1, "again")
    answer = kcat.ask("subscribe", subscription="again", max_backlog=3)
    assert answer["counts"]["outstanding"] == 1
    assert [one.value() for one in kcat.deliveries(3, "again")] == [b"0", b"1", b"2"]
    assert kcat.ask("subscribe", subscription="again", max_backlog=0)["counts"]["outstanding"] == 3
    assert kcat.ask("heartbeat", subscription="again")["status"] == "ok"
    assert kcat.ask("depth")["counts"]["leased"] == 3

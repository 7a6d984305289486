"""`lapse gateway` as a process, with a real worker: publish, receive, settle, query and follow over HTTP."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import orjson
import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from lapse_client.letters.redriven import TOPIC
from lapse_client.letters.unfinished_redrive import UnfinishedRedrive
from support.kafka.log import until, write
from support.processes.deployment import WorkerProcess
from support.processes.figures import free_port
from support.processes.gateway import Door

QUEUES = {
    "orders": {"expiration": "enabled", "lease_period": "60s", "partitions": 2},
    "streamed": {"lease_period": "60s"},
    "idle": {"lease_period": "60s"},
    "kept": {"lease_period": "60s"},
    "taken": {"semantics": "at-most-once"},
    "parted": {"ordering": "total", "barrier": "/type = 'EOD'"},
    "shared": {"lease_period": "60s"},
    "shown": {"lease_period": "60s"},
    "told": {},
    "returned": {"lease_period": "60s"},
    "died": {"expiration": "enabled", "lease_period": "60s"},
    "pointed": {"topics": ["first{}", "second{}"], "default_publish_target": "second{}"},
}
SOW = {"prices": {}, "followed": {}, "slow": {}}
LAPSE = {"metrics_port": free_port()}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.feature("L2", "Q3", "Q8", "C16", "X3")
def test_what_is_published_is_received_under_a_lease_and_settled_once(gateway: Door) -> None:
    to = gateway.deployment.name("orders")
    answer = gateway.http.post(
        f"/publish/{to}",
        params={"key": "k", "ttl_ms": 600_000},
        content=b'{"id": 1.10}',
        headers={"Lapse-Header-Trace": "caf%C3%A9", "traceparent": TRACE},
    )
    assert answer.status_code == 201
    (message,) = gateway.receive("orders")
    assert message["bookmark"] == answer.json()["bookmark"]
    assert (message["key"], message["value"]) == ("k", {"id": 1.1})
    assert message["headers"] == [["trace", "café"], ["traceparent", TRACE]]
    assert message["expires_at_ms"] == message["timestamp_ms"] + 600_000
    assert message["delivery_count"] == 1
    assert message["lease_until_ms"] > message["timestamp_ms"]
    assert gateway.depth("orders")["leased"] == 1

    wrong = {"receipts": [message["receipt"], f"{to}:2:0"]}
    refused = gateway.http.post(gateway.path("orders", "/acknowledge"), json=wrong)
    assert refused.status_code == 400
    assert f"topic {to} has partitions 0 to 1" in refused.json()["error"]["text"]
    assert gateway.depth("orders")["leased"] == 1, "and the subscription has its delivery still"
    renewed = gateway.http.post(gateway.path("orders", "/renew"), json={"receipts": [message["receipt"]]})
    assert renewed.json()["results"] == [{"messages": message["bookmark"], "result": "settled"}]
    other = f"{to}:0:4711"  # of another gateway, or its lease is over: it keeps no other from its renewal
    some = {"receipts": [f"{other}#1@1", message["receipt"]]}
    assert gateway.http.post(gateway.path("orders", "/renew"), json=some).json()["results"] == [
        {"messages": message["bookmark"], "result": "settled"},
        {"messages": other, "result": "not_holder"},
    ]
    for status, result in ((200, "settled"), (200, "already_settled")):
        done = gateway.http.post(gateway.path("orders", "/acknowledge"), json={"receipts": [message["receipt"]]})
        assert done.status_code == status
        assert [one["result"] for one in done.json()["results"]] == [result]
    late = gateway.http.post(gateway.path("orders", "/acknowledge"), headers={"Lapse-Receipt": message["receipt"]})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "not_settled")
    assert gateway.depth("orders")["depth"] == 0


def own_figures(gateway: Door) -> dict[tuple[str, ...], float]:
    """What the gateway tells Prometheus, by name and the values of labels."""
    answer = httpx.get(f"{gateway.address}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.mark.feature("Q15")
def test_prometheus_is_informed_of_requests_and_of_what_is_open(gateway: Door) -> None:
    before = own_figures(gateway)
    receive = "/v1/queues/{queue}/receive"
    (deployment,) = {key[1] for key in before if key[0] == "lapse_gateway_subscriptions"}
    gateway.publish("kept", 1)
    (message,) = gateway.receive("kept", subscription="counted")
    assert gateway.http.post(gateway.path("nothing", "/receive"), params={"subscription": "s"}).status_code == 404
    after = own_figures(gateway)

    def more(*key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    assert more("lapse_gateway_requests_total", deployment, "POST", receive, "200") == 1
    assert more("lapse_gateway_requests_total", deployment, "POST", receive, "404") == 1
    assert more("lapse_gateway_request_seconds_count", deployment, "POST", receive) == 2
    assert more("lapse_gateway_request_seconds_bucket", deployment, "+Inf", "POST", receive) == 2
    assert more("lapse_gateway_request_seconds_sum", deployment, "POST", receive) > 0
    assert after["lapse_gateway_subscriptions", deployment] >= 1, "those of other tests end meanwhile"
    assert more("lapse_gateway_held_messages", deployment) == 1
    assert {("lapse_gateway_streams", deployment, of) for of in ("sow", "events")} <= after.keys()
    assert gateway.deployment.name("kept") not in "".join(part for key in after for part in key)
    gateway.http.post(gateway.path("kept", "/acknowledge"), json={"receipts": [message["receipt"]]}).raise_for_status()
    gateway.http.delete(gateway.path("kept", "/subscriptions/counted")).raise_for_status()
    assert (
        own_figures(gateway)["lapse_gateway_held_messages", deployment]
        == before["lapse_gateway_held_messages", deployment]
    )


@pytest.mark.feature("Q8", "Q5")
def test_a_message_that_is_cancelled_comes_again_and_an_expired_one_leaves(gateway: Door) -> None:
    gateway.publish("orders", {"n": 1})
    (first,) = gateway.receive("orders")
    gateway.http.post(gateway.path("orders", "/cancel"), headers={"Lapse-Receipt": first["receipt"]}).raise_for_status()
    (second,) = gateway.receive("orders")
    assert (second["bookmark"], second["delivery_count"]) == (first["bookmark"], 2)
    stale = gateway.http.post(gateway.path("orders", "/cancel"), json={"receipts": [first["receipt"]]})
    assert [one["result"] for one in stale.json()["results"]] == ["stale"]
    gateway.http.post(gateway.path("orders", "/expire"), json={"receipts": [second["receipt"]]}).raise_for_status()
    (letter,) = gateway.deployment.letters("orders", 1)
    assert letter.value() == b'{"n":1}'


@pytest.mark.feature("X3")
def test_payloads_of_all_kinds_come_back_as_they_went(gateway: Door) -> None:
    to = gateway.deployment.name("orders")
    messages = [
        {"value": [1, None]},
        {"text": "déjà"},
        {"base64": "AP8=", "key_base64": "/w==", "headers": [["a", "1"], ["a", {"base64": "/w=="}], ["b", None]]},
        {"value": 1, "ttl_ms": 5, "expires_at_ms": 5},
    ]
    answer = gateway.http.post(f"/publish/{to}/batch", json={"messages": messages})
    assert answer.status_code == 207
    assert [set(one) for one in answer.json()["results"]] == [{"bookmark"}] * 3 + [{"error"}]
    found = []
    while len(found) < 3:
        (message,) = gateway.receive("orders")
        found.append(message)
        settled = gateway.http.post(gateway.path("orders", "/acknowledge"), json={"receipts": [message["receipt"]]})
        assert settled.json()["settled"] == 1
    payloads = {name: one for one in found for name in ("value", "text", "base64") if name in one}
    assert payloads["value"]["value"] == [1, None]
    assert payloads["text"]["text"] == "déjà"
    assert (payloads["base64"]["base64"], payloads["base64"]["key_base64"]) == ("AP8=", "/w==")
    assert payloads["base64"]["headers"] == [["a", "1"], ["a", {"base64": "/w=="}], ["b", None]]


@pytest.mark.feature("Q2")
def test_a_publish_to_a_queue_goes_to_its_default_target(gateway: Door) -> None:
    (bookmark,) = gateway.publish("pointed", 1)
    assert bookmark.startswith(f"{gateway.deployment.name('second')}:")
    assert gateway.receive("pointed")[0]["bookmark"] == bookmark


def test_a_raw_answer_is_the_payload_and_nothing_else(gateway: Door) -> None:
    to = gateway.deployment.name("shown")
    gateway.http.post(f"/publish/{to}", params={"key": "é"}, content=b"\x00\xff\r\n", headers={"Lapse-Header-A": "b"})
    ask = {"subscription": "raw", "format": "raw", "wait_s": 30}
    answer = gateway.http.post(gateway.path("shown", "/receive"), params=ask)
    assert (answer.status_code, answer.content) == (200, b"\x00\xff\r\n")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (answer.headers["lapse-key"], answer.headers["lapse-header-a"]) == ("%C3%A9", "b")
    done = gateway.http.post(
        gateway.path("shown", "/acknowledge"), headers={"Lapse-Receipt": answer.headers["lapse-receipt"]}
    )
    assert done.status_code == 200
    assert gateway.http.post(gateway.path("shown", "/receive"), params={**ask, "wait_s": 0}).status_code == 204
    assert gateway.http.delete(gateway.path("shown", "/subscriptions/raw")).status_code == 204
    odd = "a/b%2F é?#..%"  # a name of the path holds whatever the program has called itself
    ask |= {"subscription": odd, "wait_s": 0}
    assert gateway.http.post(gateway.path("shown", "/receive"), params=ask).status_code == 204
    end = gateway.path("shown", f"/subscriptions/{quote(odd, safe='')}")
    assert [gateway.http.delete(end).status_code for _ in range(2)] == [204, 409]


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict]]:
    """The events of a stream."""
    kind, data = "", []
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            yield kind, orjson.loads("\n".join(data))
            kind, data = "", []


@pytest.mark.feature("Q3", "X3")
def test_a_stream_hands_out_what_comes_and_a_broken_one_gives_back_what_nobody_saw(gateway: Door) -> None:
    gateway.publish("streamed", *range(5))
    seen: list[dict] = []
    with gateway.http.stream(
        "GET", gateway.path("streamed", "/stream"), params={"subscription": "s", "max_backlog": 2}
    ) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for kind, data in events(stream.iter_lines()):
            assert kind == "delivery"
            seen.append(data)
            if len(seen) == 4:
                break
            answer = gateway.http.post(
                gateway.path("streamed", "/acknowledge"), headers={"Lapse-Receipt": data["receipt"]}
            )
            assert answer.status_code == 200
    assert [one["value"] for one in seen] == [0, 1, 2, 3]
    gateway.http.delete(gateway.path("streamed", "/subscriptions/s")).raise_for_status()
    assert gateway.depth("streamed")["available"] == 2


@pytest.mark.feature("Q10")
def test_who_goes_away_while_they_wait_takes_no_message_with_them(gateway: Door) -> None:
    ask = {"subscription": "gone", "wait_s": 30}
    with pytest.raises(httpx.ReadTimeout):
        gateway.http.post(gateway.path("idle", "/receive"), params=ask, timeout=2)
    gateway.publish("idle", "kept for the next")
    (message,) = gateway.receive("idle", **ask)
    assert message["value"] == "kept for the next"


@pytest.mark.feature("Q7")
def test_requests_of_one_name_share_its_backlog_and_no_message_comes_twice(gateway: Door) -> None:
    gateway.publish("shared", *range(40))
    seen: list[int] = []

    def work() -> None:
        while len(seen) < 40:
            batch = gateway.receive("shared", subscription="pool", max=5, max_backlog=20, wait_s=1)
            seen.extend(one["value"] for one in batch)
            if not batch:
                continue
            receipts = [one["receipt"] for one in batch]
            gateway.http.post(gateway.path("shared", "/acknowledge"), json={"receipts": receipts}).raise_for_status()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == list(range(40))
    assert gateway.depth("shared")["depth"] == 0
    other = gateway.http.post(gateway.path("shared", "/receive"), params={"subscription": "pool", "max_backlog": 9})
    assert (other.status_code, other.json()["error"]["code"]) == (400, "invalid_argument")


@pytest.mark.feature("C79", "Q6")
def test_an_at_most_once_message_is_received_once(gateway: Door) -> None:
    gateway.publish("taken", 1)
    (message,) = gateway.receive("taken")
    assert message["lease_until_ms"] is None
    assert gateway.receive("taken", wait_s=0.5) == []
    assert gateway.depth("taken")["depth"] == 0


@pytest.mark.feature("Q12")
def test_a_subscription_without_a_backlog_gets_barriers_only(gateway: Door) -> None:
    ask = {"subscription": "days", "max_backlog": 0}
    assert gateway.receive("parted", **ask, wait_s=0) == []
    gateway.publish("parted", {"n": 1}, {"type": "EOD"}, {"n": 2})
    assert gateway.receive("parted", **ask, max=5, wait_s=0) == []
    (message,) = gateway.receive("parted")
    gateway.http.post(
        gateway.path("parted", "/acknowledge"), json={"receipts": [message["receipt"]]}
    ).raise_for_status()
    (barrier,) = gateway.receive("parted", **ask, max=5)
    assert (barrier["kind"], barrier["value"]) == ("barrier", {"type": "EOD"})
    assert "receipt" not in barrier


@pytest.mark.feature("Q15", "Q21", "D6")
def test_a_queue_is_counted_shown_paused_purged_and_explained(gateway: Door) -> None:
    name = gateway.deployment.name("kept")
    assert name in gateway.http.get("/queues").json()["queues"]
    first, _ = gateway.publish("kept", {"n": 1}, {"n": 2})
    shown = gateway.http.get(gateway.path("kept", "/messages"), params={"filter": "/n = 1"}).json()["messages"]
    assert [(one["bookmark"], one["state"]) for one in shown] == [(first, "available")]
    assert gateway.http.post(gateway.path("kept", "/pause")).json() == {"paused": True}
    assert gateway.receive("kept", wait_s=0.5) == []
    assert gateway.http.post(gateway.path("kept", "/resume")).json() == {"paused": False}
    assert len(gateway.receive("kept")) == 1
    shown = gateway.http.get(gateway.path("kept", "/messages"), params={"state": "leased"}).json()["messages"]
    assert [one["state"] for one in shown] == ["leased"]
    (open_one,) = gateway.http.get(gateway.path("kept", "/subscriptions")).json()["subscriptions"]
    assert (open_one["outstanding"], open_one["max_backlog"]) == (1, 1)
    assert open_one["since_ms"] <= open_one["heard_ms"]
    purged = gateway.http.post(gateway.path("kept", "/purge"), json={"all": True, "leased": True}).json()
    assert purged["removed"] == 2
    answer = gateway.http.get("/explain", params={"bookmark": first, "entity": name}).json()
    assert [one["what"] for one in answer["moments"]][:2] == ["arrived", "delivered"]
    never = f"{gateway.address}/console/queues/{name}/message/now?bookmark={name}:0:9"
    assert "No record can be read at this bookmark" in gateway.http.get(never).text
    audited = [line for line in gateway.process.text.splitlines() if "lapse_gateway.audit" in line and name in line]
    assert [json.loads(line[line.index("{") :])["did"] for line in audited] == ["pause", "resume", "purge"]
    until(lambda: gateway.http.get(f"/figures/{name}").json().get("per_s"), "rates")
    assert set(gateway.http.get(f"/figures/{name}").json()["per_s"]) == {"in", "out", "expired", "dead", "retried"}
    assert gateway.http.get("/figures/nope").json()["error"]["code"] == "no_figures"


@pytest.mark.feature("Q22", "C61", "C62")
def test_what_has_left_is_counted_and_comes_back_once(gateway: Door) -> None:
    name, path = gateway.deployment.name("returned"), gateway.path("returned", "/rewind")
    bookmarks = gateway.publish("returned", *({"n": n} for n in range(4)))
    gateway.http.post(gateway.path("returned", "/purge"), json={"all": True}).raise_for_status()

    def rewound(**wanted: object) -> dict:
        answer = gateway.http.post(path, json=wanted)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert rewound(to="beginning", dry_run=True)["rewound"] == 4
    assert rewound(to="2026-01-31T12:00:00Z", dry_run=True)["rewound"] == 4
    assert rewound(to=time.time_ns() // 1_000_000, dry_run=True)["rewound"] == 0
    assert gateway.depth("returned")["depth"] == 0
    done = rewound(to=bookmarks[1], filter="/n <> 2", id="mine")
    assert (done["id"], done["rewound"], done["no_match"]) == ("mine", 2, 1)
    assert rewound(to=bookmarks[1], id="mine") == done
    received, names = gateway.receive("returned", max=5), [f"{bookmarks[n]}~1" for n in (1, 3)]
    assert [one["bookmark"] for one in received] == names
    receipts = [one["receipt"] for one in received]
    assert [one.partition("@")[0] for one in receipts] == [f"{name}#1" for name in names], "as in any text"
    gateway.http.post(gateway.path("returned", "/acknowledge"), json={"receipts": receipts}).raise_for_status()
    assert gateway.depth("returned")["depth"] == 0
    audited = [line for line in gateway.process.text.splitlines() if '"did": "rewind"' in line and name in line]
    record = json.loads(audited[0][audited[0].index("{") :])
    assert (record["id"], record["filter"], record["counts"]["rewound"]) == ("mine", "/n <> 2", 2)
    assert len(audited) == 2


@pytest.mark.feature("D2", "D5", "C58")
def test_dead_letters_are_reported_and_sent_back_edited_or_as_they_are(gateway: Door) -> None:
    name = gateway.deployment.name("died")
    for n in range(3):
        gateway.http.post(f"/publish/{name}", params={"ttl_ms": 1, "key": "k"}, json={"n": n}).raise_for_status()
    gateway.deployment.letters("died", 3)
    found = gateway.http.get(f"/letters/{name}", params={"filter": "/n > 0", "top_n": 1}).json()
    assert (found["count"], found["reasons"]) == (2, {"time_limit": 2})
    (letter,) = found["letters"]
    assert (letter["key"], letter["value"], letter["origin"]) == ("k", {"n": 2}, f"{name}:0:2")

    def redriven(status: int = 200, **wanted: object) -> dict:
        answer = gateway.http.post(f"/letters/{name}/redrive", json=wanted)
        assert answer.status_code == status, answer.text
        return answer.json()

    edited = {"letter": letter["letter"], "value": {"n": "two"}}
    assert redriven(**edited, dry_run=True) == {"sent": 1, "deadline_passed": 1, "refused": {}}
    assert gateway.depth("died")["depth"] == 0
    assert redriven(**edited)["sent"] == 1
    assert redriven(**edited)["refused"] == {"sent before": 1}
    assert redriven(reasons=["time_limit"], filter="/n < 2", dry_run=True)["sent"] == 2
    note = UnfinishedRedrive(letters=f"dlq.{name}", audit="a", directory="/data/redriven", begun_at_ms=1_000)
    write(gateway.deployment.servers, TOPIC, [note.value], key=note.key)
    for dry_run in (False, True):
        refused = redriven(409, filter="/n < 1", dry_run=dry_run)["error"]
        assert refused["code"] == "redrive_unfinished"
        assert "/data/redriven began to send letters" in refused["text"], dry_run
    write(gateway.deployment.servers, TOPIC, [None], key=note.key)
    assert redriven(reasons=["forced_expire"])["sent"] == 0
    assert redriven(filter="/n < 1")["sent"] == 1
    until(lambda: gateway.depth("died")["depth"] == 2, "they are back")
    assert [one["value"] for one in gateway.receive("died", max=2)] == [{"n": "two"}, {"n": 0}]
    for letter, code in ((f"dlq.{name}:0:99", "no_record"), (f"{name}:0:0", "no_record"), ("x", "invalid_argument")):
        assert redriven(404 if code == "no_record" else 400, letter=letter)["error"]["code"] == code


@pytest.mark.feature("D4")
def test_events_are_reported_since_an_instant_and_as_they_come(gateway: Door) -> None:
    name = gateway.deployment.name("told")
    first, second = gateway.publish("told", 1, 2)
    for bookmark in (first, second):
        gateway.http.post(gateway.path("told", "/expire"), json={"receipts": [bookmark], "fault": "wrong"})
    with gateway.http.stream("GET", f"/events/{name}", params={"since_ms": 0}) as answer:
        answered = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
        ended = [next(answered), next(answered)]
        assert [one["messages"] for one in ended] == [[first], [second]]
        assert {(one["event"], *one["reasons"]) for one in ended} == {("dead_lettered", "forced_expire")}
        (third,) = gateway.publish("told", 3)
        gateway.http.post(gateway.path("told", "/expire"), json={"receipts": [third]})
        assert next(answered)["messages"] == [third]
    assert gateway.http.get("/events/nope").json()["error"]["code"] == "unknown_entity"


@pytest.mark.feature("D4")
def test_a_stream_of_events_goes_on_behind_the_last_id_that_a_client_saw(gateway: Door) -> None:
    name, path = gateway.deployment.name("told"), f"/events/{gateway.deployment.name('told')}"
    published = gateway.publish("told", *range(3))
    for bookmark in published:
        gateway.http.post(gateway.path("told", "/expire"), json={"receipts": [bookmark]})
    ids: dict[str, str] = {}
    with gateway.http.stream("GET", path, params={"since_ms": 0}) as answer:
        last = ""
        for line in answer.iter_lines():
            last = line[4:] if line.startswith("id: ") else last
            if line.startswith("data: "):
                (bookmark,) = json.loads(line[6:])["messages"]
                ids[bookmark] = last
                if bookmark == published[2]:
                    break
    for parameters in ({}, {"since_ms": 0}):  # a browser sends the header with the address that it had
        headers = {"Last-Event-ID": ids[published[0]]}
        with gateway.http.stream("GET", path, params=parameters, headers=headers) as answer:
            answered = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))
            assert [next(answered)["messages"] for _ in range(2)] == [[published[1]], [published[2]]]
    wrong = gateway.http.get(path, headers={"Last-Event-ID": f"{name}:0:17"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_argument")
    assert "Last-Event-ID" in wrong.json()["error"]["text"]


@pytest.mark.feature("S6", "X2")
def test_the_gateway_keeps_little_for_a_reader_that_does_not_read_and_loses_nothing(gateway: Door) -> None:
    """It stops reading Kafka for this reader, and goes on when the socket does."""
    name, count, address = gateway.deployment.name("slow"), 15_000, urlsplit(gateway.address)
    producer = Producer({"bootstrap.servers": gateway.deployment.servers, "linger.ms": 20})
    before_kib = resident_kib(gateway.process)
    with socket.create_connection((address.hostname, address.port)) as reader:
        request = f"GET /v1/sow/{name}/follow?mode=subscribe HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
        reader.sendall(request.encode())
        assert reader.recv(12) == b"HTTP/1.1 200"
        with gateway.http.stream("GET", f"/sow/{name}/follow", params={"mode": "subscribe"}) as quick:
            for number in range(count):
                producer.produce(name, json.dumps({"n": number, "text": "x" * 3_000}), b"%d" % number)
            assert not producer.flush(60)
            assert sum(1 for _ in zip(range(count), events(quick.iter_lines()), strict=False)) == count
        kept_kib = resident_kib(gateway.process) - before_kib
        found, left = set[bytes](), b""
        while len(found) < count:
            part = reader.recv(1 << 20)
            assert part, "the stream ended"
            left += part
            found.update(re.findall(rb'"n":\s?(\d+),', left))
            left = left[-100:]
    assert kept_kib < 100_000, kept_kib


def resident_kib(process: WorkerProcess) -> int:
    """How much memory a process has, in KiB."""
    (found,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process.process.pid}/status").read_text())
    return int(found)


@pytest.mark.feature("S3", "S5", "S6", "S7")
def test_a_sow_topic_is_queried_followed_and_deleted_from(gateway: Door) -> None:
    name = gateway.deployment.name("followed")
    for key in "AB":
        gateway.http.post(f"/publish/{name}", params={"key": key}, content=json.dumps({"n": key})).raise_for_status()
    ask = {"filter": "/n = 'A'"}
    until(lambda: gateway.http.get(f"/sow/{name}/records", params=ask).json()["records"], "a record")
    (record,) = gateway.http.get(f"/sow/{name}/records", params=ask).json()["records"]
    assert (record["key"], record["value"]) == ("A", {"n": "A"})
    assert len(gateway.http.get(f"/sow/{name}/records", params={"key": ["A", "B"]}).json()["records"]) == 2
    some = gateway.http.get(f"/sow/{name}/records", params={"select": ["/n", "-/m"]}).json()["records"]
    assert sorted(one["value"]["n"] for one in some) == ["A", "B"]
    assert gateway.http.get(f"/sow/{name}/records", params={"select": "n"}).status_code == 400
    with gateway.http.stream("GET", f"/sow/{name}/follow", params=ask) as stream:
        emitted = events(stream.iter_lines())
        assert next(emitted)[1]["value"] == {"n": "A"}
        assert next(emitted)[0] == "group-end"
        gateway.http.post(f"/publish/{name}", params={"key": "A"}, content=b'{"n": "A", "m": 2}').raise_for_status()
        kind, update = next(emitted)
        assert (kind, update["value"]) == ("publish", {"n": "A", "m": 2})
        assert gateway.http.post(f"/sow/{name}/delete", json={"keys": ["A"]}).json() == {"removed": 1}
        kind, gone = next(emitted)
        assert (kind, gone["operation"]) == ("oof", "deleted")


@pytest.mark.feature("X2")
def test_what_a_shard_refuses_keeps_its_code(gateway: Door) -> None:
    answer = gateway.http.get(gateway.path("orders", "/messages"), params={"filter": "/n >"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_expression")
    answer = gateway.http.post(gateway.path("orders", "/receive"), params={"subscription": "f", "filter": "n"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_expression")
    answer = gateway.http.get("/queues/ordres")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_entity")
    wrong = gateway.http.get(f"/queues/{gateway.deployment.name('prices')}")
    assert "is a SOW topic" in wrong.json()["error"]["text"]
    late = gateway.http.get("/explain", params={"bookmark": f"{gateway.deployment.name('orders')}:0:999999"})
    assert (late.status_code, late.json()["error"]["code"]) == (404, "no_record")


@pytest.mark.feature("L3", "L5", "X7")
def test_pages_show_instants_that_no_date_has(gateway: Door) -> None:
    """Any publisher may state one, and then no update of the page was shown."""
    latest, shown = (1 << 63) - 2, "epoch + 9223372036854775806 ms"
    sow = gateway.deployment.name("prices")
    params = {"key": "far", "enqueue_at_ms": latest}
    gateway.http.post(f"/publish/{sow}", params=params, content=b"{}").raise_for_status()
    page = f"{gateway.address}/console/sow/{sow}/scheduled"
    until(lambda: shown in httpx.get(page).text, "the update")
    assert shown in httpx.get(f"{page}/confirm").text

"""How `lapse gateway` is run: by its page, with users, by TLS, at a rate, read-only, and to its end."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from lapse.embedded import EmbeddedKafka
from lapse_client import Admin
from support.kafka.log import until
from support.processes import fork_server
from support.processes.deployment import Deploy, Deployment
from support.processes.entitled import Entitled
from support.processes.gateway import Door, door
from support.programs.program import program
from support.suite.at_length import cases

ROOT = Path(__file__).parents[3]
QUEUES = {
    "orders": {"expiration": "enabled", "lease_period": "60s", "partitions": 2},
    "streamed": {"lease_period": "60s"},
    "idle": {"lease_period": "60s"},
    "worked": {"lease_period": "60s", "max_cancels": 3},
    "shown": {"lease_period": "60s"},
}
SOW = {"prices": {}}


def page() -> str:
    return (ROOT / "docs/gateway.md").read_text("utf-8")


@pytest.mark.feature("X3", "Q9")
def test_the_worker_of_the_page_does_its_work(gateway: Door, tmp_path: Path) -> None:
    program("curl")  # the page's commands are written with it
    text = page().split("\n## A worker in ten lines\n")[1]
    (script,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(script.splitlines()) <= 10
    (tmp_path / "worker.sh").write_text(script)
    handler = tmp_path / "handle"
    handler.write_text(f'#!/bin/sh\nread line\necho "$line" >> {tmp_path}/seen\n[ "$line" != bad ]\n')
    handler.chmod(0o755)
    for line in ("good", "bad", "$(touch oops)"):
        to = gateway.deployment.name("worked")
        gateway.http.post(f"/publish/{to}", content=f"{line}\n".encode()).raise_for_status()
    environment = {**os.environ, "LAPSE_GATEWAY": gateway.address}
    command = ["sh", "worker.sh", gateway.deployment.name("worked"), str(handler)]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
    try:
        until(lambda: gateway.depth("worked")["depth"] == 0, "all is done", 60)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(10)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert sorted(set(seen)) == ["$(touch oops)", "bad", "good"]
    assert seen.count("bad") == 4  # at first, and once after each of three cancels
    assert seen.count("good") == 1
    assert not (tmp_path / "oops").exists()


@pytest.mark.feature("X4")
def test_a_gateway_without_users_answers_to_names_of_this_machine_alone(gateway: Door) -> None:
    for path in (gateway.path("shown"), gateway.address):
        refused = gateway.http.get(path, headers={"Host": "elsewhere.example"})
        assert refused.status_code == 421, refused.text
        assert "--allow-host" in refused.text
    assert gateway.http.get(gateway.path("shown"), headers={"Host": "localhost:1"}).status_code == 200


def test_the_commands_of_the_page_print_what_it_says(gateway: Door) -> None:
    program("curl")  # the page's commands are written with it
    text = page().split("\n## Try it\n")[1].split("\n## ")[0]
    (script,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names = {stem: gateway.deployment.name(stem) for stem in ("shown", "prices")}
    script = script.replace("http://localhost:8080", gateway.address)
    script = re.sub(r"\borders\b", names["shown"], script)
    script = re.sub(r"\bprices\b", names["prices"], script)
    done = subprocess.run(["sh", "-e", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    shown = [line.strip() for line in text.split("It prints:")[1].splitlines() if line.strip()]
    assert len(printed) == len(shown) == 6
    for one, line in zip(printed, shown, strict=True):
        assert next(iter(one)) == re.match(r'{"(\w+)"', line)[1]  # type: ignore[index]
    assert printed[1]["depth"] == 1
    assert printed[2]["messages"][0]["value"] == {"id": 1}
    assert printed[3]["settled"] == 1
    assert printed[5]["records"][0]["value"] == {"symbol": "A", "price": 7}


@pytest.mark.feature("X4")
def test_users_come_in_by_their_keys_and_see_what_is_theirs(kafka: str, tmp_path: Path) -> None:
    office = Entitled(kafka, tmp_path, {})
    office.users = {
        "alice": {"entitlements": {"desks{}": {"read": True, "publish": True, "filter": "/desk = 'A'"}}},
        "bob": {"entitlements": {"desks{}": {"read": True, "filter": "/desk = 'B'"}}},
        "ops": {"entitlements": {".*{}": {"read": True, "admin": True}}},
    }
    office.configure({"desks": {"lease_period": "60s"}, "hidden": {}}, session_timeout="3s")
    try:
        office.apply().worker().wait_for_shards(2)
        with door(office) as gate:
            name = office.name("desks")
            alice, bob, ops = ((user, office.secret(user)) for user in ("alice", "bob", "ops"))
            batch = {"messages": [{"value": {"desk": desk}} for desk in "AB"]}
            assert gate.http.post(f"/publish/{name}/batch", json=batch).status_code == 401
            assert gate.http.post(f"/publish/{name}/batch", json=batch, auth=("alice", bob[1])).status_code == 401
            assert gate.http.post(f"/publish/{name}/batch", json=batch, auth=bob).status_code == 403
            assert gate.http.post(f"/publish/{name}/batch", json=batch, auth=alice).status_code == 201
            assert gate.http.get("/queues", auth=bob).json() == {"queues": [name]}
            assert len(gate.http.get("/queues", auth=ops).json()["queues"]) == 2
            for user, desk in ((alice, "A"), (bob, "B")):
                answer = gate.http.post(
                    gate.path("desks", "/receive"),
                    params={"subscription": "same", "max": 5},
                    headers={"Authorization": f"Bearer {user[1]}"},
                )
                (message,) = answer.json()["messages"]
                assert message["value"] == {"desk": desk}
                if user is alice:
                    taken = message["receipt"]
            stolen = gate.http.post(gate.path("desks", "/acknowledge"), json={"receipts": [taken]}, auth=bob)
            assert [one["result"] for one in stolen.json()["results"]] == ["unknown"]
            assert gate.http.post(gate.path("desks", "/pause"), auth=alice).json()["error"]["code"] == "forbidden"
            assert gate.http.post(gate.path("desks", "/pause"), auth=ops).status_code == 200
            for rest in ("", "/messages", "/stream?subscription=s", "/receive?subscription=s"):
                ask = gate.http.post if "receive" in rest else gate.http.get
                hidden, never = (
                    (one.status_code, re.sub(r" on \S+, if it is there( \(did you mean .*\?\))?;", "", one.text))
                    for one in (ask(gate.path("hidden", rest), auth=alice), ask(f"/queues/never{rest}", auth=alice))
                )
                assert hidden == never, "whether it is there is not told"
                assert hidden[0] == 403
            answered = gate.http.get(f"/queues/{name}s", auth=alice).json()["error"]["text"]
            assert f"(did you mean {name!r}?); they have one on: {name}." in answered
            for secret in (alice[1], bob[1], ops[1]):
                assert secret not in gate.process.text
    finally:
        office.close()


def test_a_gateway_that_is_read_only_shows_and_changes_nothing(shop: Deployment) -> None:
    with door(shop, "--read-only") as gate:
        assert gate.http.get(gate.path("orders")).status_code == 200
        assert gate.http.get(f"/sow/{shop.name('prices')}/records").status_code == 200
        for method, path in (
            ("POST", "/receive?subscription=w"),
            ("POST", "/purge"),
            ("GET", "/stream?subscription=w"),
        ):
            answer = gate.http.request(method, gate.path("orders", path))
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "read_only")


def test_more_requests_than_the_rate_are_asked_to_wait(shop: Deployment) -> None:
    with door(shop, "--rate", "1") as gate:
        answers = [gate.http.get(f"{gate.address}/v1") for _ in range(20)]
        assert {answer.status_code for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "too_many_requests"
        assert int(refused.headers["retry-after"]) >= 1


def test_it_speaks_https(shop: Deployment, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = [program("openssl"), *"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2".split()]
    make += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(make, check=True, capture_output=True)
    options = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    with door(shop, *options, verify=ssl.create_default_context(cafile=certificate)) as gate:
        assert gate.address.startswith("https://")
        assert gate.http.get(f"{gate.address}/v1").status_code == 200
    done = shop.lapse("gateway", "--port", "0", "--tls-certificate", str(certificate))
    assert done.returncode == 1
    assert "two PEM files that belong together" in done.stderr


def test_the_end_gives_back_what_is_held_and_ends_who_waits(shop: Deployment) -> None:
    with door(shop) as gate:
        gate.publish("streamed", "held")
        until(lambda: gate.receive("streamed", subscription="ending", max_backlog=9), "a message")
        answers: list[int] = []
        ask = {"subscription": "waiting", "wait_s": 60}
        waiting = threading.Thread(
            target=lambda: answers.append(gate.http.post(gate.path("idle", "/receive"), params=ask).status_code)
        )
        waiting.start()
        until(lambda: gate.depth("idle")["subscriptions"] >= 1, "it waits")
        gate.process.signal(signal.SIGTERM)
        assert gate.process.wait(20) == 0
        waiting.join(10)
        assert answers == [200]
    assert shop.depth("streamed")["leased"] == 0


@pytest.mark.feature("X3", "Q5")
@pytest.mark.parametrize("gone", cases(["frozen"], long=["killed"]))
def test_the_end_comes_without_a_broker_as_well(own_kafka: EmbeddedKafka, deploy: Deploy, gone: str) -> None:
    """It holds a message, its clients of all kinds are open, and records are under way. So for worker and transfer."""
    shop = deploy(QUEUES, own_kafka.bootstrap_servers)
    shop.configure(QUEUES, SOW)
    worker = shop.apply().worker().wait_for_shards(len(QUEUES) + 1 + len(SOW))
    link = ["--to", shop.servers, "--to-queue", shop.name("worked"), "--follow", "--config", str(shop.config)]
    transfer = shop.run(["-m", "lapse", "transfer", shop.name("shown"), *link])
    until(lambda: "following" in transfer.text, "the transfer", 40)
    with door(shop) as gate:
        gate.publish("orders", "held")
        until(lambda: gate.receive("orders", subscription="ending"), "a message")
        assert gate.depth("orders")["leased"] == 1
        assert gate.http.get(f"/sow/{shop.name('prices')}").status_code == 200
        own_kafka.kill() if gone == "killed" else own_kafka.pause()
        try:
            with pytest.raises(httpx.ReadTimeout):
                gate.http.post(f"/publish/{shop.name('orders')}", content=b"{}", timeout=1)
            if gone == "frozen":
                refused = gate.http.get(f"/queues/{shop.name('orders')}", timeout=40)
                assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_connection"), refused.text
            for process in (gate.process, transfer, worker):
                process.signal(signal.SIGTERM)
            assert [one.wait(60) for one in (gate.process, transfer, worker)] == [0, 0, 0]
        finally:
            own_kafka.restart() if gone == "killed" else own_kafka.resume()
        assert "the gateway ends all the same" in gate.process.text


def test_a_wrong_broker_and_an_occupied_port_are_reported_in_a_sentence() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        occupied = str(other.getsockname()[1])
        for options, message in (
            (["--port", "0", "-b", "127.0.0.1:1"], "no connection to Kafka at 127.0.0.1:1"),
            (["--port", occupied, "-b", "127.0.0.1:1"], f"cannot listen on 127.0.0.1:{occupied}"),
        ):
            done = fork_server.run(["-m", "lapse", "gateway", *options], os.environ)
            assert done.returncode == 1
            assert done.stderr.startswith(f"Error: {message}")
            assert len(done.stderr.splitlines()) == 1
            assert not done.stdout


@pytest.mark.feature("Q15", "Q23")
def test_the_console_shows_a_queue_again_that_was_created_anew(deploy: Deploy) -> None:
    here = deploy({"stays": {}, "goes": {}}, definitions="topic").apply()
    here.worker().wait_for_shards(2)
    stays, goes = here.name("stays"), here.name("goes")
    row = re.compile(r'<tr data-queue="([^"]+)">.*?data-name="available">([^<]*)<', re.DOTALL)
    with (
        door(here) as opened,
        Admin(here.app_id, connection=here.connection) as admin,
        httpx.Client(base_url=opened.address, params={"find": here.token}, timeout=60) as http,
    ):

        def available() -> dict[str, str]:
            return dict(row.findall(http.get("/").text))

        until(lambda: available() == {stays: "0", goes: "0"}, "both")
        admin.delete_queue(goes)
        until(lambda: available() == {stays: "0"}, "one is gone")
        admin.create_queue(goes)
        until(lambda: available() == {stays: "0", goes: "0"}, "both again")

"""`on_expire` functions of real workers: each message that leaves, at least once, and never at the shard's cost."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment

RULE = """
import json, os, time

def left(message):
    name = message.entity.rsplit("-", 1)[0]
    if name == "slow":
        time.sleep(600)
    if name == "crash":
        time.sleep(0.02)
    if message.value == b"raise":
        raise LookupError("the rule is wrong")
    with open(os.path.join(os.path.dirname(__file__), name), "a") as out:
        out.write(json.dumps({
            "bookmark": message.bookmark, "value": (message.value or b"").decode(), "reasons": message.reasons,
            "id": message.lapse_id, "expires": message.expires_at_ms, "deliveries": message.delivery_count,
            "headers": [name for name, _ in message.headers],
        }) + "\\n")
"""
RULED = {"expiration": "enabled", "on_expire": "rule:left", "dead_letter": False}
QUEUES = {
    "told": {**RULED, "dead_letter": True},
    "slow": {**RULED, "dead_letter": True, "on_expire_timeout": "15s"},
    "crash": {**RULED},
}
SOW = {"prices": {"expiration": "enabled", "on_expire": "rule:left", "key": "/s"}}


@pytest.fixture(scope="module")
def ruled(deploy: Deploy) -> Deployment:
    deployment = deploy(QUEUES)
    (deployment.directory / "rule.py").write_text(RULE, "utf-8")
    deployment.configure(QUEUES, SOW)
    deployment.apply().worker().wait_for_shards(4)
    return deployment


def called(directory: Path, name: str) -> list[dict[str, Any]]:
    path = directory / name
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


@pytest.mark.feature("L15", "C26", "L14")
def test_the_rule_gets_what_leaves_and_an_exception_changes_nothing(ruled: Deployment) -> None:
    """Expired on time, on arrival, by request, and one whose call raises: four letters, three calls that succeeded."""
    written = ruled.write("told", "raise", "on time", headers=[("lapse-ttl-ms", b"300"), ("own", b"1")])
    (past,) = ruled.write("told", "on arrival", headers=[("lapse-expires-at-ms", b"1")])
    (forced,) = ruled.write("told", "forced")
    with ruled.queue("told") as queue:
        until(lambda: queue.expire([ruled.bookmark("told", forced)])[0].settled, "the message")
    letters = ruled.letters("told", 4)
    ids = {dict(letter.headers() or [])["lapse-id"].decode() for letter in letters}
    until(lambda: len(called(ruled.directory, "told")) == 3, "three calls")
    found = {one["value"]: one for one in called(ruled.directory, "told")}
    assert {one["id"] for one in found.values()} < ids
    assert found["on time"]["bookmark"] == ruled.bookmark("told", written[1])
    assert found["on time"]["expires"] == written[1].timestamp_ms + 300
    assert found["on time"]["headers"] == ["lapse-ttl-ms", "own"]
    assert found["on arrival"]["bookmark"] == ruled.bookmark("told", past)
    assert found["forced"]["reasons"] == ["forced_expire"]
    until(lambda: "the rule is wrong" in ruled.workers[0].text, "the word of the call that raised")


@pytest.mark.feature("L15", "C26")
def test_a_rule_that_hangs_holds_no_removal_up(ruled: Deployment) -> None:
    ruled.write("slow", *(str(number) for number in range(50)), headers=[("lapse-ttl-ms", b"100")])
    assert len(ruled.letters("slow", 50)) == 50
    given_up = "not done within 15.0 s, given up"
    assert given_up not in ruled.workers[0].text, "the letters did not wait for the rule"
    until(lambda: given_up in ruled.workers[0].text, "the time limit", 40)


@pytest.mark.feature("L15", "S4")
def test_a_record_of_a_sow_topic_comes_as_it_last_was(ruled: Deployment) -> None:
    headers = [("lapse-ttl-ms", b"3000")]
    ruled.write("prices", '{"s": "A", "p": 1}', headers=headers)
    ruled.write("prices", '{"p": 2, "s": "A"}', headers=[*headers, ("lapse-command", b"delta")])
    until(lambda: called(ruled.directory, "prices"), "the call")
    (one,) = called(ruled.directory, "prices")
    assert json.loads(one["value"]) == {"s": "A", "p": 2}
    assert one["reasons"] == ["time_limit"]


@pytest.mark.feature("C26", "L15")
def test_after_a_crash_the_calls_that_are_left_are_made(ruled: Deployment) -> None:
    """Killed while 200 calls wait: all of them happen, some perhaps twice, and the queue is empty all along."""
    ruled.write("crash", *(str(number) for number in range(200)), headers=[("lapse-ttl-ms", b"100")])
    until(lambda: len(called(ruled.directory, "crash")) > 10, "the first calls")
    assert ruled.depth("crash")["depth"] == 0
    ruled.workers[0].kill()
    before = len(called(ruled.directory, "crash"))
    assert before < 200
    ruled.worker().wait_for_shards(4)
    until(lambda: len({one["id"] for one in called(ruled.directory, "crash")}) == 200, "every call", 40)
    assert ruled.workers[1].running


@pytest.mark.feature("L15", "X7")
@pytest.mark.parametrize("rule", ["nowhere.at_all:left", "os:system"])
def test_a_worker_does_not_start_with_a_rule_that_cannot_be_called(deploy: Deploy, rule: str) -> None:
    """Nor with what can be called and is no rule."""
    deployment = deploy({"orders": {"on_expire": rule}})
    for command in ("check", "worker"):
        done = deployment.lapse(command)
        assert done.returncode == 1
        assert "lapse.toml:" in done.stderr
        assert f"on_expire: '{rule}'" in done.stderr
        assert "Traceback" not in done.stderr

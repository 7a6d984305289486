"""Figures of a real worker for Prometheus, and the age of the oldest message."""

import json
import time
import urllib.request

import pytest

from lapse.runtime.shard.timeline import Stage
from lapse_client import SowClient
from lapse_gateway.console.watch import STATES, TOPIC_FIGURES
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.figures import free_port, scraped, with_figures

QUEUES = {
    "figures": {"expiration": "enabled", "lease_period": "1s"},
    "days": {"ordering": "total", "barrier": "/type = 'EOD'"},
    "accounts": {"group_by": "/account"},
    "nightly": {"target_queue_depth": 2},
    "hung": {"lease_period": "300ms"},
}
SHOWN_AS = {
    "paused": ("lapse_queue_paused",),
    "subscriptions": ("lapse_subscriptions",),
    "before_barrier": ("lapse_queue_held_up", "before_barrier"),
    "dying_before_barrier": ("lapse_queue_held_up", "dying_before_barrier"),
    "groups_held_back": ("lapse_queue_held_up", "groups_held_back"),
    "hanging": ("lapse_queue_held_up", "hanging"),
}
"""Where `depth` has a figure that is no state of messages."""

SOW_SHOWN_AS = {"records": ("lapse_sow_records",), "subscriptions": ("lapse_subscriptions",)}
"""The same of a SOW topic."""


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def measured(deploy: Deploy, port: int) -> Deployment:
    return with_figures(deploy, QUEUES, port)


@pytest.mark.feature("L13", "Q15", "D1")
def test_the_figures_tell_what_happened(measured: Deployment, port: int) -> None:
    measured.write("figures", *"abcd")
    measured.write("figures", "dies", "dies, too", headers=[("lapse-ttl-ms", b"300")])
    measured.write("prices", "1", key=b"A")
    subscriber = measured.subscriber("figures", 2).start()
    first, second = subscriber.receive(10), subscriber.receive(10)
    assert first is not None
    assert second is not None
    subscriber.settle("acknowledge", [first], wait=True)
    measured.letters("figures", 2)
    with measured.queue("figures") as queue, pytest.raises(Exception, match="filter"):
        queue.purge(filter="no ( filter")
    found = scraped(port)
    assert found["lapse_queue_messages", "leased"] >= 1
    assert found["lapse_arrivals_total",] == 7
    assert found["lapse_deliveries_total",] >= 2
    assert found["lapse_acknowledgments_total",] == 1
    assert found["lapse_removals_total", "time_limit"] == 2
    assert found["lapse_removals_total", "purged"] == 0
    assert found["lapse_dead_letters_total",] == 2
    assert found["lapse_refused_commands_total",] >= 1
    assert found["lapse_subscriptions",] == 1
    assert found["lapse_sow_records",] == 1
    assert found["lapse_expiry_lateness_seconds_count",] == 2
    assert found["lapse_expiry_lateness_seconds_bucket", "2.5"] == 2
    assert found["lapse_step_duration_seconds_count",] > 0
    assert found["lapse_journal_bytes_total",] > 0
    for stage in Stage:
        assert found["lapse_stage_seconds_count", stage.value] > 0, stage
        assert (
            found["lapse_stage_seconds_bucket", "+Inf", stage.value] == found["lapse_stage_seconds_count", stage.value]
        )
    assert abs(found["lapse_clock_offset_seconds",]) < 1
    subscriber.close()
    until(lambda: scraped(port)["lapse_queue_messages", "leased"] == 0, "the lease's end")


@pytest.mark.feature("Q15")
def test_depth_knows_the_age_of_the_oldest_message(measured: Deployment, port: int) -> None:
    with measured.queue("figures") as queue:
        queue.purge(leased=True)
        assert queue.depth()["oldest_age_ms"] is None
        measured.write("figures", "old")
        until(lambda: queue.depth()["depth"] == 1, "the message")
        time.sleep(0.3)
        assert 300 <= queue.depth()["oldest_age_ms"] < 10_000
    assert 0.3 <= scraped(port)["lapse_queue_oldest_age_seconds",] < 10


def agreed(measured: Deployment, port: int, queue: str, *expected: str) -> None:
    """What the console and `lapse top` show of a queue, which is what it answers to `depth`, can be scraped."""
    figures, found = measured.depth(queue), scraped(port, measured.name(queue))
    assert {*STATES, "oldest_age_ms", "subscriptions"} <= figures.keys(), "columns of the console"
    assert set(expected) <= {name for name, figure in figures.items() if figure}
    sum_of_states = ("available", "leased", "delayed", "transferring")
    assert figures.pop("depth") == sum(found["lapse_queue_messages", state] for state in sum_of_states)
    assert 0 <= found["lapse_queue_oldest_age_seconds",] - figures.pop("oldest_age_ms") / 1000 < 20
    figures = dict.fromkeys(SHOWN_AS, 0) | figures
    assert figures == {name: found[SHOWN_AS.get(name, ("lapse_queue_messages", name))] for name in figures}


@pytest.mark.feature("Q15", "C21", "C48", "C87")
def test_what_the_console_shows_of_a_queue_can_be_scraped(measured: Deployment, port: int) -> None:
    """Every figure that a queue answers is compared, so that one which is added later has to be there, too."""
    measured.write("days", '{"n": 1}', '{"n": 2}', '{"n": 3}', '{"type": "EOD"}')
    with measured.subscriber("days", 2) as subscriber, measured.subscriber("days", 1) as other:
        assert len([subscriber.receive(10), subscriber.receive(10), other.receive(10)]) == 3
        with measured.queue("days") as queue:
            queue.pause()
        agreed(measured, port, "days", "available", "leased", "paused", "subscriptions", "before_barrier")
        found = scraped(port, measured.name("days"))
        assert (found["lapse_queue_holders",], found["lapse_queue_most_leased",]) == (2, 2)

    measured.write("accounts", '{"account": 1, "n": 1}', '{"account": 1, "n": 2}', '{"account": 2, "n": 2}')
    with measured.subscriber("accounts", 5, filter="/n = 2") as subscriber:
        assert subscriber.receive(10) is not None
        agreed(measured, port, "accounts", "available", "leased", "groups_held_back")

    measured.write("hung", "1", "2", "3")
    with measured.subscriber("hung", 2):  # lives, and settles nothing
        until(lambda: measured.depth("hung").get("hanging") == 2, "the consumer that hangs")
        with measured.queue("hung") as queue:
            until(lambda: [one.hangs_since_ms for one in queue.subscriptions()] != [0], "it hangs, by its subscription")
            (hung,) = queue.subscriptions()
            assert hung.since_ms < hung.hangs_since_ms < hung.heard_ms + 60_000
        agreed(measured, port, "hung", "available", "leased", "hanging")


@pytest.mark.feature("Q15", "L5")
def test_what_the_console_shows_of_a_sow_topic_can_be_scraped(measured: Deployment, port: int) -> None:
    later = str(round(time.time() * 1000) + 600_000).encode()
    measured.write("prices", "1", key=b"B")
    measured.write("prices", "2", key=b"B", headers=[("lapse-enqueue-at-ms", later)])
    name = measured.name("prices")
    with SowClient(name, connection=measured.connection) as prices, prices.subscribe():
        until(lambda: prices.depth()["scheduled"] == 1, "the update that waits for its instant")
        counts, found = prices.depth(), scraped(port, name)
    assert set(TOPIC_FIGURES) <= counts.keys(), "columns of the console"
    assert (counts["records"], counts["subscriptions"]) >= (1, 1)
    assert counts == {one: found[SOW_SHOWN_AS.get(one, ("lapse_queue_messages", one))] for one in counts}


@pytest.mark.feature("X7")
def test_a_port_that_is_taken_stops_no_worker(measured: Deployment) -> None:
    second = measured.worker()
    until(lambda: "no metrics: metrics_port" in second.text, "the warning", 40)
    assert second.running
    assert second.stop() == 0


@pytest.mark.feature("Q13", "Q15")
def test_what_is_in_the_log_and_in_no_shard_is_counted(measured: Deployment, port: int) -> None:
    """A worker's lag, as its figures and `/ready` have it: here a queue at its target depth leaves it there."""
    topic = measured.name("nightly")
    measured.write("nightly", *"abcde")
    until(lambda: scraped(port).get(("lapse_behind_records", topic)) == 3, "three beyond the target depth")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
        assert json.loads(answer.read())["behind"][topic] == 3
    with measured.subscriber("nightly", 5) as subscriber:
        for _ in "abcde":
            subscriber.receive(10).acknowledge()
    until(lambda: ("lapse_behind_records", topic) not in scraped(port), "it has caught up")


@pytest.mark.feature("L13")
def test_a_worker_with_a_wrong_clock_expires_on_time_and_says_so(deploy: Deploy, port: int) -> None:
    """Its wall clock is five seconds ahead: measured against the broker, corrected, exported, warned about."""
    here = free_port()
    deployment = deploy({"ahead": {"expiration": "enabled"}}, metrics_port=here).apply()
    wrong = (
        "import sys, time; now = time.time; time.time = lambda: now() + 5; "
        "from lapse.runtime.timers import clock; "
        "clock.WorkerClock.__init__.__defaults__ = (1000, time.monotonic, time.time); "
        "from lapse.cli import main; main(sys.argv[1:])"
    )
    arguments = ["worker", "--config", str(deployment.config), "--data-dir", str(deployment.directory / "d")]
    worker = deployment.run(["-c", wrong, *arguments, "--no-supervise"]).wait_for_shards(1)
    deployment.write("ahead", "warms the measurement up", headers=[("lapse-ttl-ms", b"100")])
    deployment.letters("ahead", 1)
    (written,) = deployment.write("ahead", "x", headers=[("lapse-ttl-ms", b"1500")])
    letter = deployment.letters("ahead", 2)[1]
    died_ms = letter.timestamp()[1]
    assert written.timestamp_ms + 1_500 <= died_ms < written.timestamp_ms + 3_500
    assert scraped(here)["lapse_clock_offset_seconds",] == pytest.approx(-5, abs=0.3)
    assert "ahead of the broker's" in worker.text

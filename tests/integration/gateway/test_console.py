"""The console in a real browser: what it shows, and each action, with a real worker behind it."""

import json
import os
import re
import time

import pytest
from confluent_kafka import Producer

from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.figures import free_port
from support.processes.gateway import Door, door
from support.programs.browser import notice, shot, view_of
from support.suite.at_length import cases

playwright = pytest.importorskip("playwright.sync_api")  # a machine without it still runs the other tests

QUEUES = {
    "orders": {"lease_period": "60s"},
    "purged": {"lease_period": "60s"},
    "crowded": {"lease_period": "60s", "dead_letter": False},
    "counted": {"expiration": "enabled"},
    "rewound": {"lease_period": "60s"},
    "planned": {"lease_period": "60s"},
    "paused": {},
    "died": {"expiration": "enabled"},
    "spoilt": {"expiration": "enabled", "lease_period": "60s"},
    "bare": {"expiration": "enabled", "lease_period": "60s"},
    "one": {"lease_period": "60s"},
}
SOW = {"prices": {}, "planned-prices": {}}
LAPSE = {"metrics_port": free_port()}


def audited(gateway: Door, name: str) -> list[dict]:
    """The audit records about an entity."""
    lines = [line for line in gateway.process.text.splitlines() if "lapse_gateway.audit" in line and name in line]
    return [json.loads(line[line.index("{") :]) for line in lines]


def test_the_overview_says_what_needs_somebody_and_goes_on_by_itself(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("orders")
    view.goto(f"{gateway.address}/?find={gateway.deployment.token}")
    row = view.locator(f'tr[data-queue="{name}"]')
    playwright.expect(row.locator('[data-name="available"]')).to_have_text("0")
    gateway.publish("orders", *range(3))
    playwright.expect(row.locator('[data-name="available"]')).to_have_text("3")
    playwright.expect(row.locator("rect.available")).to_have_count(1)
    playwright.expect(row.locator("rect.leased")).to_have_count(0)
    playwright.expect(view.locator('[data-total="available"]')).to_have_text(re.compile("^[1-9]"))
    needs = view.locator(".needs")
    playwright.expect(needs).to_contain_text(f"{name}: 3 messages are available, and nobody subscribes")
    shot(view, gateway, "overview")
    view.goto(f"{gateway.address}/?find={gateway.deployment.token}")
    assert gateway.receive("orders", subscription="console")
    playwright.expect(row.locator('[data-name="leased"]')).to_have_text("1")
    playwright.expect(row.locator('[data-name="subscriptions"]')).to_have_text("1")
    view.get_by_role("link", name=name, exact=True).first.click()
    playwright.expect(view.get_by_role("heading", level=1)).to_have_text(name)
    playwright.expect(view.get_by_role("table", name="Subscriptions")).to_contain_text("console@")
    playwright.expect(view.locator("#chart canvas")).to_be_visible()
    gateway.http.post(gateway.path("orders", "/acknowledge"), json={"filter": "TRUE"}).raise_for_status()
    playwright.expect(view.locator('[data-state="available"]')).to_have_text("0")


@pytest.mark.feature("Q15")
def test_many_queues_are_shown_fifty_at_a_time_and_found_by_name(deploy: Deploy, browser: "playwright.Browser") -> None:
    """With `make chaos` a thousand of them."""
    count = int(os.environ.get("LAPSE_ENTITIES", "60"))
    many = deploy({f"q{number:04}": {"partitions": 1} for number in range(count)}).apply()
    many.worker().wait_for_shards(count, 300)
    with door(many) as gate, view_of(browser, "many") as view:
        view.goto(f"{gate.address}/?find={many.token.upper()}")
        rows = view.locator("tr[data-queue]")
        playwright.expect(rows).to_have_count(50)
        needs = view.locator(".needs")
        playwright.expect(needs).to_contain_text(f"All {count:,} queues answer", timeout=120_000)
        playwright.expect(rows.last.locator('[data-name="available"]')).to_have_text("0")
        view.get_by_role("link", name=f"Next {min(50, count - 50)}").click()
        playwright.expect(rows).to_have_count(min(50, count - 50))
        playwright.expect(rows.first).to_contain_text(many.name("q0050"))
        gate.publish("q0003", 1)  # of which no row is shown
        playwright.expect(needs).to_contain_text(f"{many.name('q0003')}: 1 message is available", timeout=120_000)
        view.get_by_role("link", name="Show only what needs attention").click()
        playwright.expect(rows).to_have_count(1)
        playwright.expect(rows).to_contain_text(many.name("q0003"))
        view.get_by_role("link", name="Show all queues").click()
        view.get_by_label("Name").fill(f"{many.token}-nowhere")
        view.get_by_role("button", name="Find").click()
        playwright.expect(needs).to_contain_text("Nothing found")
        view.get_by_label("Name").fill(many.name("Q0054"))
        view.get_by_role("button", name="Find").click()
        playwright.expect(rows).to_have_count(1)
        playwright.expect(view.locator("caption").first).to_have_text("Queues")


@pytest.mark.feature("Q15")
def test_a_worker_is_killed_while_the_page_is_open(deploy: Deploy, browser: "playwright.Browser") -> None:
    """With `make chaos` before 100,000 messages."""
    count = int(os.environ.get("LAPSE_MESSAGES", "2000"))
    busy = deploy({"busy": {"lease_period": "60s", "expiration": "enabled"}}, session_timeout="3s").apply()
    worker = busy.worker()
    worker.wait_for_shards(1)
    with door(busy) as gate, view_of(browser, "killed") as view:
        for first in range(0, count, 10_000):
            gate.publish("busy", *({"n": n} for n in range(first, min(count, first + 10_000))))
        view.goto(f"{gate.address}/console/queues/{busy.name('busy')}")
        available = view.locator('[data-state="available"]')
        playwright.expect(available).to_have_text(f"{count:,}", timeout=60_000)
        assert gate.receive("busy")
        playwright.expect(view.locator('[data-state="leased"]')).to_have_text("1")
        since = view.get_by_role("table", name="Subscriptions").locator(".instant")
        playwright.expect(since).to_have_count(1)
        began = since.inner_text()
        worker.kill()
        need = view.locator(".need")
        playwright.expect(need).to_contain_text("no worker has answered for")
        playwright.expect(available).to_have_text("–")
        busy.worker().wait_for_shards(1)
        playwright.expect(available).to_have_text(re.compile(rf"^({count - 1:,}|{count:,})$"), timeout=60_000)
        playwright.expect(since).to_have_text(began)
        view.get_by_label("Filter").fill(f"/n >= {count - 3}")
        view.get_by_role("button", name="Find").click()
        playwright.expect(view.locator("#messages tbody tr")).to_have_count(3)


def test_a_message_is_found_and_its_life_is_reported(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("one")
    for key in ("a", "it's"):
        answer = gateway.http.post(
            f"/publish/{name}",
            params={"key": key, "ttl_ms": 600_000},
            content=json.dumps({"key": key, "html": "<script>alert(1)</script>"}),
            headers={"Lapse-Header-Trace": "seventeen"},
        )
        answer.raise_for_status()
    bookmark = answer.json()["bookmark"]
    assert len(gateway.receive("one", max=2, max_backlog=2)) == 2
    gateway.http.delete(gateway.path("one", "/subscriptions/w")).raise_for_status()
    view.goto(f"{gateway.address}/console/queues/{name}")
    found = view.locator("#messages")
    playwright.expect(found.locator("tbody tr")).to_have_count(2)
    view.get_by_label("Key").fill("it's")
    view.get_by_role("button", name="Find").click()
    playwright.expect(found.locator("tbody tr")).to_have_count(1)
    playwright.expect(found).to_contain_text("min")  # the countdown
    for wrong, advice in (("/key >", "the expression ends too early"), ("TRUE) OR (TRUE", "unexpected )")):
        view.get_by_label("Filter").fill(wrong)
        view.get_by_role("button", name="Find").click()
        playwright.expect(found.get_by_role("alert")).to_contain_text(advice)
    view.get_by_label("Bookmark").fill(bookmark)
    view.get_by_role("button", name="Show its life").click()
    playwright.expect(view.get_by_role("heading", level=1)).to_have_text(bookmark)
    playwright.expect(view.locator("#payload")).to_contain_text("<script>alert(1)</script>")
    playwright.expect(view.get_by_role("table", name="Headers")).to_contain_text("seventeen")
    playwright.expect(view.locator(".life")).to_contain_text(re.compile("arrived.*delivered", re.DOTALL))
    shot(view, gateway, "message")
    view.reload()
    view.get_by_role("button", name="Expire it now").click()
    playwright.expect(view.get_by_role("dialog").locator("#preview")).to_contain_text("1 message")
    view.get_by_role("button", name="Expire", exact=True).click()
    notice(view, f"{bookmark} is expired")
    (record,) = audited(gateway, name)
    assert (record["did"], record["bookmark"], record["result"]) == ("expire", bookmark, "settled")
    view.reload()
    playwright.expect(view.locator("main")).to_contain_text("It is not in the queue")
    assert view.get_by_role("button", name="Expire it now").count() == 0
    assert gateway.depth("one")["depth"] == 1
    (letter,) = gateway.deployment.letters("one", 1)
    assert letter.key() == b"it's"


def test_a_purge_is_shown_first_and_takes_what_was_shown(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("purged")
    gateway.publish("purged", *({"n": n} for n in range(10)))
    view.goto(f"{gateway.address}/console/queues/{name}")
    view.get_by_label("Filter").fill("/n < 4")
    view.get_by_role("button", name="Find").click()
    playwright.expect(view.locator("#messages tbody tr")).to_have_count(4)
    view.get_by_role("button", name="Purge by key and filter").click()
    playwright.expect(view.get_by_role("dialog").locator("#preview")).to_have_text(re.compile("^4 messages"))
    view.keyboard.press("Escape")
    playwright.expect(view.get_by_role("dialog")).not_to_be_visible()
    assert gateway.depth("purged")["depth"] == 10
    view.get_by_role("button", name="Purge by key and filter").click()
    view.get_by_role("button", name="Leave it").click()
    playwright.expect(view.get_by_role("dialog")).not_to_be_visible()
    assert gateway.depth("purged")["depth"] == 10
    view.get_by_role("button", name="Purge by key and filter").click()
    view.get_by_role("button", name="Purge", exact=True).click()
    notice(view, "4 messages removed")
    playwright.expect(view.locator("#messages")).to_contain_text("No message matches")
    assert gateway.depth("purged")["depth"] == 6
    assert gateway.receive("purged")
    view.get_by_label("Filter").fill("")
    view.get_by_label("also leased messages").check()
    view.get_by_role("button", name="Purge by key and filter").click()
    playwright.expect(view.get_by_role("dialog").locator("#preview")).to_have_text(
        re.compile("^6 messages, 1 of them leased")
    )
    view.get_by_role("button", name="Purge", exact=True).click()
    notice(view, "6 messages removed")
    assert gateway.depth("purged")["depth"] == 0
    some, all_of_them = audited(gateway, name)
    assert (some["did"], some["filter"], some["counts"]["removed"]) == ("purge", "/n < 4", 4)
    assert (all_of_them["leased"], all_of_them["counts"]["leased"]) == (True, 1)


@pytest.mark.feature("Q15", "Q21")
@pytest.mark.parametrize("count", cases([20_000], long=[100_000]))
def test_thousands_of_messages_are_counted_found_and_taken_out(
    gateway: Door, view: "playwright.Page", count: int
) -> None:
    name, producer = gateway.deployment.name("crowded"), Producer({"bootstrap.servers": gateway.deployment.servers})
    for number in range(count):
        producer.produce(name, b'{"n": %d}' % number, key=b"k%d" % number)
        producer.poll(0)
    producer.flush()
    view.goto(f"{gateway.address}/console/queues/{name}")
    playwright.expect(view.locator('[data-state="available"]')).to_have_text(f"{count:,}", timeout=120_000)
    rows = view.locator("#messages tbody tr")
    for field, text, found in (("Key", f"k{count - 1}", 1), ("Filter", f"/n >= {count - 2}", 2)):
        view.get_by_label(field, exact=True).fill(text)
        view.get_by_role("button", name="Find").click()
        playwright.expect(rows).to_have_count(found, timeout=60_000)
        view.get_by_label(field, exact=True).fill("")
    view.get_by_label("Filter").fill("/n > 9")
    view.get_by_role("button", name="Purge by key and filter").click()
    playwright.expect(view.get_by_role("dialog").locator("#preview")).to_have_text(
        re.compile(f"^{count - 10:,} messages"), timeout=60_000
    )
    view.get_by_role("button", name="Purge", exact=True).click()
    notice(view, f"{count - 10:,} messages removed", 60_000)
    playwright.expect(view.locator('[data-state="available"]')).to_have_text("10")
    with gateway.deployment.queue("crowded") as queue:
        queue.purge()


@pytest.mark.feature("Q22")
def test_what_has_left_is_shown_first_and_comes_back_once(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("rewound")
    gateway.publish("rewound", *({"n": n} for n in range(5)))
    gateway.http.post(gateway.path("rewound", "/purge"), json={"filter": "/n > 0"}).raise_for_status()
    view.goto(f"{gateway.address}/console/queues/{name}")
    view.get_by_label("From").fill("yesterday")
    view.get_by_role("button", name="Rewind…").click()
    playwright.expect(view.get_by_role("dialog").get_by_role("alert")).to_contain_text("expected beginning")
    view.get_by_role("button", name="Close").click()
    playwright.expect(view.get_by_role("dialog")).not_to_be_visible()
    view.get_by_label("From").fill("beginning")
    view.get_by_label("Filter").fill("/n < 4")
    view.get_by_role("button", name="Rewind…").click()
    preview = view.get_by_role("dialog").locator("#preview")
    playwright.expect(preview).to_contain_text("3 messages come back")
    playwright.expect(preview).to_contain_text("1 live, 1 that do not match")
    view.get_by_role("button", name="Leave it").click()
    assert gateway.depth("rewound")["depth"] == 1
    view.get_by_role("button", name="Rewind…").click()
    view.get_by_role("button", name="Bring 3 back").click()
    notice(view, "3 messages came back")
    playwright.expect(view.locator("#messages tbody")).to_contain_text("~1")
    assert gateway.depth("rewound")["depth"] == 4
    (record,) = (one for one in audited(gateway, name) if one["did"] == "rewind")
    assert (record["filter"], record["counts"]["rewound"]) == ("(/n < 4)", 3)


@pytest.mark.feature("L5", "Q15")
def test_scheduled_messages_are_shown_first_and_cancelled(gateway: Door, view: "playwright.Page") -> None:
    name, soon_ms = gateway.deployment.name("planned"), int(time.time() * 1000) + 3_600_000
    gateway.publish("planned", {"n": 0}, {"n": 1})
    batch = [{"value": {"n": n}, "key": f"k{n}", "enqueue_at_ms": soon_ms + n} for n in range(5)]
    gateway.http.post(f"/publish/{name}/batch", json={"messages": batch}).raise_for_status()
    view.goto(f"{gateway.address}/console/queues/{name}")
    view.get_by_label("State").select_option("scheduled")
    view.get_by_role("button", name="Find").click()
    rows = view.locator("#messages tbody tr")
    playwright.expect(rows).to_have_count(5)
    playwright.expect(rows.first.locator('[data-name="state"]')).to_have_text(re.compile("^scheduled, due in 59 min"))
    view.get_by_label("Filter").fill("/n < 3")
    cancel, preview = (
        view.get_by_role("button", name="Cancel scheduled messages"),
        view.get_by_role("dialog").locator("#preview"),
    )
    cancel.click()
    playwright.expect(preview).to_have_text(re.compile("^3 scheduled messages, due 20"))
    view.get_by_role("button", name="Leave them").click()
    assert gateway.depth("planned")["scheduled"] == 5
    cancel.click()
    view.get_by_role("button", name="Cancel 3").click()
    notice(view, "3 scheduled messages are cancelled")
    playwright.expect(rows).to_have_count(0)
    figures = gateway.depth("planned")
    assert (figures["scheduled"], figures["available"]) == (2, 2)
    view.get_by_label("Filter").fill("")
    view.get_by_role("button", name="Find").click()
    rows.first.get_by_role("link").click()
    playwright.expect(view.locator('[data-name="state"]')).to_have_text("scheduled")
    view.get_by_role("button", name="Cancel it").click()
    playwright.expect(preview).to_have_text(re.compile("^1 scheduled message, due 20"))
    view.get_by_role("button", name="Cancel 1").click()
    notice(view, "1 scheduled message is cancelled")
    assert gateway.depth("planned")["scheduled"] == 1
    logged = [json.loads(line[line.index("{") :]) for line in gateway.process.text.splitlines() if "cancel sch" in line]
    assert [(one["withdrawn"], one.get("filter")) for one in logged] == [(3, "/n < 3"), (1, None)]


@pytest.mark.feature("D4")
def test_scheduled_updates_are_listed_shown_first_and_cancelled(gateway: Door, view: "playwright.Page") -> None:
    name, soon_ms = gateway.deployment.name("planned-prices"), int(time.time() * 1000) + 3_600_000
    gateway.http.post(f"/publish/{name}", params={"key": "k0"}, content='{"n": 9}').raise_for_status()
    batch = [{"value": {"n": n}, "key": f"k{n}", "enqueue_at_ms": soon_ms + n} for n in range(5)]
    gateway.http.post(f"/publish/{name}/batch", json={"messages": batch}).raise_for_status()
    scheduled = lambda: gateway.http.get(f"/sow/{name}/scheduled").json()["updates"]  # noqa: E731
    until(lambda: len(scheduled()) == 5, "five updates are to come")
    assert [(one["key"], one["change"], one["enqueue_at_ms"]) for one in scheduled()] == [
        (f"k{n}", "publish", soon_ms + n) for n in range(5)
    ]
    view.goto(f"{gateway.address}/console/sow/{name}")
    rows, preview = view.locator("#updates tbody tr"), view.get_by_role("dialog").locator("#preview")
    playwright.expect(rows).to_have_count(5)
    playwright.expect(rows.first.locator('[data-name="due in"]')).to_have_text(re.compile("^59 min"))
    find = view.get_by_role("search", name="Find scheduled updates")
    find.get_by_label("Filter").fill("/n < 3")
    find.get_by_role("button", name="Find").click()
    playwright.expect(rows).to_have_count(3)
    view.get_by_role("button", name="Cancel them").click()
    playwright.expect(preview).to_have_text(re.compile("^3 scheduled updates, due 20"))
    view.get_by_role("button", name="Leave them").click()
    assert len(scheduled()) == 5
    view.get_by_role("button", name="Cancel them").click()
    view.get_by_role("button", name="Cancel 3").click()
    notice(view, "3 scheduled updates are cancelled")
    playwright.expect(rows).to_have_count(0)
    assert (
        gateway.http.get(f"/sow/{name}").json() | {"scheduled": 2, "records": 1}
        == gateway.http.get(f"/sow/{name}").json()
    )
    find.get_by_label("Filter").fill("")
    find.get_by_role("button", name="Find").click()
    rows.first.get_by_role("button").click()
    playwright.expect(preview).to_have_text(re.compile("^1 scheduled update, due 20"))
    view.get_by_role("button", name="Cancel 1").click()
    notice(view, "1 scheduled update is cancelled")
    assert [one["key"] for one in scheduled()] == ["k4"]
    assert gateway.http.post(f"/sow/{name}/withdraw", json={"filter": "/n = 4"}).json() == {"withdrawn": 1}
    logged = [json.loads(line[line.index("{") :]) for line in gateway.process.text.splitlines() if name in line]
    assert [(one["withdrawn"], one.get("filter")) for one in logged] == [(3, "/n < 3"), (1, None), (1, "/n = 4")]


def test_events_are_followed_as_they_are_reported(gateway: Door, view: "playwright.Page") -> None:
    view.goto(f"{gateway.address}/console/queues/{gateway.deployment.name('paused')}")
    view.get_by_role("button", name="Follow events").click()
    playwright.expect(view.locator("#tail-state")).to_have_text("Live.")
    rows = view.get_by_role("table", name="Events").locator("tbody tr")

    def is_shown() -> bool:
        (bookmark,) = gateway.publish("paused", 1)
        gateway.http.post(gateway.path("paused", "/expire"), json={"receipts": [bookmark]}).raise_for_status()
        return rows.count() > 0

    until(is_shown, "an event: a reader begins where the topic ends once it has found that")
    playwright.expect(rows.first).to_contain_text("forced_expire")
    view.get_by_role("button", name="Stop following").click()
    playwright.expect(view.locator("#tail-state")).to_have_text("Stopped.")


def test_a_queue_is_paused_and_resumed_by_the_keyboard_alone(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("paused")
    view.goto(f"{gateway.address}/console/queues/{name}")
    gateway.publish("paused", 1)
    # htmx binds the form of a dialog once it has settled; the dialog must not be there before, however long that takes.
    view.evaluate("htmx.config.defaultSettleDelay = 500")
    for action, needless, says, done, received in (
        ("Pause", "Resume", "Stop all deliveries", "Deliveries are stopped", 0),
        ("Resume", "Pause", "Messages are delivered again", "Deliveries go on", 1),
    ):
        playwright.expect(view.get_by_role("button", name=f"{needless}…")).to_have_count(0)
        view.get_by_role("button", name=f"{action}…").focus()
        view.keyboard.press("Enter")
        playwright.expect(view.get_by_role("dialog")).to_contain_text(says)
        playwright.expect(view.get_by_role("button", name="Leave it")).to_be_focused()
        view.keyboard.press("Tab")
        playwright.expect(view.get_by_role("button", name=action, exact=True)).to_be_focused()
        view.keyboard.press("Enter")
        notice(view, done)
        playwright.expect(view.get_by_role("button", name=f"{needless}…")).to_be_focused()
        assert len(gateway.receive("paused", wait_s=1 if not received else 30)) == received
    assert [one["did"] for one in audited(gateway, name)] == ["pause", "resume"]


@pytest.mark.feature("L13", "Q15")
def test_rates_and_lateness_are_shown_as_workers_count_them(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("counted")
    view.goto(f"{gateway.address}/console/queues/{name}")
    playwright.expect(view.locator('[data-rate="in"]')).to_have_text("0.0")
    batch = [{"value": n, "ttl_ms": 1} for n in range(20)]
    gateway.http.post(f"/publish/{name}/batch", json={"messages": batch}).raise_for_status()
    for rate in ("in", "expired", "dead"):
        playwright.expect(view.locator(f'[data-rate="{rate}"]')).to_have_text(re.compile("[1-9]"))
    bands = view.get_by_role("table", name="How late messages expired")
    playwright.expect(bands.locator("rect").last).to_be_visible()
    counts = bands.locator("td.number").all_inner_texts()
    assert sum(map(int, counts)) == 20
    view.goto(f"{gateway.address}/?find={gateway.deployment.token}")
    row = view.locator(f'tr[data-queue="{name}"]')
    playwright.expect(row.locator('[data-name="dead/s"]')).to_have_text(re.compile(r"^\d"))


@pytest.mark.feature("D5")
def test_dead_letters_are_shown_by_reason_and_sent_back_once(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("died")
    for n in range(3):
        gateway.http.post(f"/publish/{name}", params={"ttl_ms": 1}, content=json.dumps({"n": n})).raise_for_status()
    gateway.deployment.letters("died", 3)
    view.goto(f"{gateway.address}/console/letters/{name}")
    playwright.expect(view.locator("#count")).to_have_text("3")
    playwright.expect(view.locator('[data-reason="time_limit"]')).to_contain_text("3")
    playwright.expect(view.get_by_role("article").first).to_contain_text('"n": 2')
    view.get_by_label("Filter").fill("/n > 0")
    view.get_by_role("button", name="Show").click()
    playwright.expect(view.locator("#count")).to_have_text("2")
    view.get_by_role("button", name="Send them back").click()
    playwright.expect(view.get_by_role("dialog").locator("#preview")).to_contain_text("2 letters go back")
    view.get_by_role("button", name="Send 2").click()
    notice(view, "2 letters sent back")
    (record,) = audited(gateway, name)
    assert (record["did"], record["filter"], record["sent"]) == ("redrive", "/n > 0", 2)
    until(lambda: gateway.depth("died")["depth"] == 2, "they are back")
    view.get_by_role("button", name="Send them back").click()
    playwright.expect(view.get_by_role("dialog")).to_contain_text("2 (sent before)")
    playwright.expect(view.get_by_role("button", name=re.compile("^Send \\d"))).to_have_count(0)
    view.get_by_role("button", name="Leave them").click()
    view.get_by_role("article").first.get_by_role("heading").get_by_role("link").click()
    playwright.expect(view.locator(".life")).to_contain_text(re.compile("dead letter.*redriven", re.DOTALL))
    view.locator(".life").get_by_role("link").first.click()  # the message that the redrive made of it
    playwright.expect(view.locator("main")).to_contain_text("Now it is available")


@pytest.mark.feature("D5")
def test_a_dead_letter_is_edited_shown_and_sent_back(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("spoilt")
    sent = {"key": "k", "ttl_ms": 1}
    head = {"Lapse-Header-Trace": "seventeen"}
    gateway.http.post(f"/publish/{name}", params=sent, content='{\n  "n": "one"\n}', headers=head).raise_for_status()
    gateway.deployment.letters("spoilt", 1)
    view.goto(f"{gateway.address}/console/letters/{name}")
    view.get_by_role("link", name="Edit and send back").click()
    payload = view.get_by_role("textbox", name="Payload")
    playwright.expect(payload).to_have_value('{\n  "n": "one"\n}')
    payload.fill('{\n  "n": one\n}')
    view.get_by_role("button", name="Preview").click()
    playwright.expect(view.get_by_role("dialog")).to_contain_text("The payload was JSON, and is none any more")
    view.get_by_role("button", name="Leave it").click()
    payload.fill('{\n  "n": 1\n}')
    view.get_by_role("button", name="Preview").click()
    playwright.expect(view.get_by_role("dialog").locator("#preview")).to_contain_text(f"It goes to {name}")
    playwright.expect(view.locator(".difference ins")).to_have_text('+  "n": 1')
    playwright.expect(view.locator(".difference del")).to_have_text('-  "n": "one"')
    shot(view, gateway, "edit")
    view.reload()
    payload.fill('{\n  "n": 1\n}')
    view.get_by_role("button", name="Preview").click()
    assert gateway.depth("spoilt")["depth"] == 0
    view.get_by_role("button", name="Send it back").click()
    notice(view, f"Sent back to {name}")
    (message,) = gateway.receive("spoilt")
    assert (message["key"], message["value"], message["headers"][0]) == ("k", {"n": 1}, ["trace", "seventeen"])
    view.get_by_role("button", name="Preview").click()
    playwright.expect(view.get_by_role("dialog").locator("#preview")).to_contain_text("It is not sent: sent before")
    (record,) = audited(gateway, name)
    assert (record["did"], record["edited"], record["sent"]) == ("redrive", True, 1)


@pytest.mark.feature("D5", "S3")
def test_a_dead_letter_without_a_payload_stays_without_one(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("bare")
    sent = {"key": "k", "ttl_ms": 1, "delete": "true"}
    gateway.http.post(f"/publish/{name}", params=sent).raise_for_status()
    gateway.deployment.letters("bare", 1)
    view.goto(f"{gateway.address}/console/letters/{name}/edit?letter=dlq.{name}:0:0")  # no page has a link to it
    playwright.expect(view.locator("main")).to_contain_text("It has no payload")
    view.get_by_role("button", name="Preview").click()
    playwright.expect(view.get_by_role("dialog")).to_contain_text("The payload is as it was.")
    view.get_by_role("button", name="Send it back").click()
    notice(view, f"Sent back to {name}")
    with gateway.deployment.subscriber("bare") as subscriber:
        delivery = subscriber.receive(30)
        assert delivery is not None
        assert (delivery.key, delivery.value) == (b"k", None)


@pytest.mark.feature("S6")
def test_a_sow_topic_is_a_live_table(gateway: Door, view: "playwright.Page") -> None:
    name = gateway.deployment.name("prices")

    def publish(key: str, value: dict | None) -> None:
        options = {"key": key} if value is not None else {"key": key, "delete": "true"}
        content = None if value is None else json.dumps(value)
        gateway.http.post(f"/publish/{name}", params=options, content=content).raise_for_status()

    view.goto(f"{gateway.address}/console/sow/{name}")
    none = view.locator("#no-records")
    playwright.expect(none).to_contain_text(f"There is no record. lapse publish {name} ")
    publish("A", {"price": 1})
    playwright.expect(none).to_be_hidden()
    until(lambda: gateway.http.get(f"/sow/{name}").json()["records"] == 1, "a record")
    view.goto(f"{gateway.address}/?find={gateway.deployment.token}")
    row = view.locator(f'tr[data-topic="{name}"]')
    playwright.expect(row.locator('[data-name="records"]')).to_have_text("1")
    playwright.expect(row.locator('[data-name="subscriptions"]')).to_have_text("0")
    view.goto(f"{gateway.address}/console/sow/{name}")
    rows = view.locator("#records tr")
    playwright.expect(rows).to_have_count(1)
    playwright.expect(view.locator("#state")).to_have_text("Live.")
    publish("B", {"price": 2})
    playwright.expect(rows).to_have_count(2)
    publish("A", {"price": 3})
    playwright.expect(rows.first).to_contain_text('{"price": 3}')
    playwright.expect(view.locator('[data-figure="records"]')).to_have_text("2")
    publish("B", None)
    playwright.expect(rows).to_have_count(1)
    listed = f"/sow/{name}/subscriptions"
    for hidden, streams in ((True, 0), (False, 1)):  # a page that nobody sees keeps no connection
        view.evaluate(
            """hidden => {
                Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )
        until(lambda n=streams: len(gateway.http.get(listed).json()["subscriptions"]) == n, f"{streams} streams")
    counted = view.locator('[data-figure="subscriptions"]')
    playwright.expect(counted).to_have_text("0")  # this page follows the topic, and is not counted
    playwright.expect(rows).to_have_count(1)
    subscribed = view.get_by_role("table", name="Subscriptions").locator(".instant")
    playwright.expect(subscribed).to_have_text(re.compile(r"^20\d\d-"))
    playwright.expect(view.locator('[data-name="client"]')).to_contain_text("(this gateway)")
    many = [{"value": {"price": 1}, "key": f"many{number}"} for number in range(1_000)]
    gateway.http.post(f"/publish/{name}/batch", json={"messages": many}).raise_for_status()
    playwright.expect(rows).to_have_count(1_000)
    view.reload()
    playwright.expect(view.locator("#state")).to_have_text(re.compile("^Live; 1000 records are shown"))
    view.get_by_role("search", name="Choose records").get_by_label("Filter").fill("/price > 5")
    view.get_by_role("button", name="Follow", exact=True).click()
    playwright.expect(view.locator("#state")).to_have_text("Live.")
    playwright.expect(rows).to_have_count(0)
    playwright.expect(none).to_have_text("No record matches.")


def test_a_console_that_is_read_only_has_no_buttons_that_change(
    shop: Deployment, browser: "playwright.Browser"
) -> None:
    with door(shop, "--read-only") as gate, view_of(browser, "read_only") as view:
        for path in ("", f"/console/queues/{shop.name('orders')}", f"/console/letters/{shop.name('died')}?since=all"):
            view.goto(f"{gate.address}{path}")
            playwright.expect(view.locator("header")).to_contain_text("read only")
            assert view.locator(".danger, [hx-post]").count() == 0
            for button in ("Pause", "Resume", "Purge", "Cancel", "Send", "Rewind"):
                assert view.get_by_role("button", name=button).count() == 0

"""The console for several users: each sees and does what is theirs."""

import re
import time
from pathlib import Path

import pytest

from support.processes.entitled import Entitled
from support.processes.gateway import Door, door
from support.programs.browser import notice, view_of

playwright = pytest.importorskip("playwright.sync_api")  # a machine without it still runs the other tests


def check_that_the_rest_is_hidden(gate: Door, office: Entitled, desks: str, hidden: str) -> None:
    """Over HTTP, alice gets nothing of a queue that she may not read, nor dead letters."""
    for rest in ("", "/messages", "/subscriptions", "/stream?subscription=s"):
        path = f"{gate.address}/v1/queues/{hidden}{rest}"
        refused = gate.http.get(path, auth=("alice", office.secret("alice")))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    nowhere = gate.http.get("/queues/nowhere", auth=("alice", office.secret("alice")))
    assert (nowhere.status_code, hidden in nowhere.text, desks in nowhere.text) == (403, False, True)
    letters = gate.http.get(f"{gate.address}/console/letters/{desks}", auth=("alice", office.secret("alice")))
    assert letters.status_code == 403


@pytest.mark.feature("X4")
def test_each_user_sees_and_does_what_is_theirs(kafka: str, tmp_path: Path, browser: "playwright.Browser") -> None:
    office = Entitled(kafka, tmp_path, {})
    office.users = {
        "alice": {"entitlements": {"desks{}": {"read": True, "filter": "/desk = 'A'"}}},
        "bob": {"entitlements": {"desks{}": {"publish": True}}},
        "carol": {"entitlements": {"desks{}": {"admin": True}}},
        "ops": {"entitlements": {".*{}": {"read": True, "publish": True, "admin": True}}},
    }
    office.configure({"desks": {}, "hidden": {}}, session_timeout="3s")
    try:
        office.apply().worker().wait_for_shards(2)
        with door(office) as gate:
            desks, hidden = office.name("desks"), office.name("hidden")
            due_ms = int(time.time() * 1000) + 3_600_000
            soon = [{"value": {"desk": desk}, "enqueue_at_ms": due_ms} for desk in "AAB"]
            batch = {"messages": [*({"value": {"desk": desk}} for desk in "AB"), *soon]}
            answer = gate.http.post(f"/publish/{desks}/batch", json=batch, auth=("ops", office.secret("ops")))
            answer.raise_for_status()
            ops = "ops", office.secret("ops")
            held = gate.http.post(f"/queues/{desks}/receive", params={"subscription": "s", "max_backlog": 1}, auth=ops)
            assert len(held.json()["messages"]) == 1
            for user, allowed in (("bob", False), ("carol", True)):  # neither may look into the queue
                login = {"username": user, "password": office.secret(user)}
                with view_of(browser, f"as_{user}", http_credentials=login) as view:
                    view.goto(f"{gate.address}/console/queues/{desks}")
                    playwright.expect(view.locator('[data-state="leased"]')).to_have_text("1")
                    playwright.expect(view.locator("#messages .fault")).to_contain_text("read")
                    assert (view.get_by_role("table", name="Subscriptions").count() == 1) is allowed
            gate.http.delete(f"/queues/{desks}/subscriptions/s", auth=ops).raise_for_status()
            for user, queues, messages in (("alice", {desks}, 3), ("ops", {desks, hidden}, 3)):
                login = {"username": user, "password": office.secret(user)}
                with view_of(browser, f"as_{user}", http_credentials=login) as view:
                    view.goto(gate.address)
                    playwright.expect(view.locator("header")).to_contain_text(user)
                    assert (
                        set(view.locator("tr[data-queue]").evaluate_all("x => x.map(y => y.dataset.queue)")) == queues
                    )
                    view.goto(f"{gate.address}/console/queues/{desks}")
                    playwright.expect(view.locator("#messages tbody tr")).to_have_count(messages)
                    view.get_by_role("button", name="Cancel scheduled messages").click()
                    view.get_by_role("button", name=re.compile("^Cancel [12]$")).click()
                    notice(view, "2 scheduled messages are" if user == "alice" else "1 scheduled message is")
                    if user == "ops":
                        view.get_by_role("button", name="Purge by key and filter").click()
                        view.get_by_role("button", name="Purge", exact=True).click()
                        notice(view, "2 messages removed")
                    else:  # pages offer her nothing that is refused
                        for name in ("Pause", "Purge by key and filter", "Rewind"):
                            playwright.expect(view.get_by_role("button", name=name)).to_have_count(0)
                        playwright.expect(view.get_by_role("link", name="Dead letters")).to_have_count(0)
                        alice = "alice", office.secret("alice")
                        refused = gate.http.post(f"/queues/{desks}/purge", json={"all": True}, auth=alice)
                        assert (refused.status_code, "admin" in refused.text) == (403, True)
                        assert gate.http.get(f"{gate.address}/console/letters/{desks}").status_code == 401
            check_that_the_rest_is_hidden(gate, office, desks, hidden)
    finally:
        office.close()

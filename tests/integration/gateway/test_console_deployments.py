"""Several deployments behind one gateway: two clusters, a worker that is killed, and brokers that are away."""

import re
from collections.abc import Iterator

import pytest

from lapse.embedded import EmbeddedKafka
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.gateway import Door, door
from support.programs.browser import notice, shot, view_of

playwright = pytest.importorskip("playwright.sync_api")  # a machine without it still runs the other tests


@pytest.fixture
def west(own_kafka: EmbeddedKafka, deploy: Deploy) -> Deployment:
    deployment = deploy({"orders": {"lease_period": "60s"}}, own_kafka.bootstrap_servers).apply()
    deployment.worker().wait_for_shards(1)
    return deployment


@pytest.fixture
def gateway(west: Deployment, deploy: Deploy) -> Iterator[Door]:
    east = deploy({"orders": {"lease_period": "60s"}}).apply()
    east.worker().wait_for_shards(1)
    with door(east, "--deployment", f"west={west.config}") as opened:
        yield opened


@pytest.mark.feature("Q15", "X7")
def test_two_clusters_are_seen_and_acted_on_from_one_page(
    gateway: Door, west: Deployment, own_kafka: EmbeddedKafka, browser: "playwright.Browser"
) -> None:
    name, base = west.name("orders"), f"{gateway.address}/deployments/west"
    answered = gateway.http.post(f"{base}/v1/publish/{name}", content=b"{}")
    assert answered.status_code == 201, answered.text
    assert gateway.http.get(f"{base}/openapi.json").json()["servers"] == [{"url": "/deployments/west"}]
    missing = gateway.http.get(f"{base}/v1/queues/{gateway.deployment.name('orders')}")
    assert missing.status_code == 404, "each deployment has the queues of its own cluster"
    with view_of(browser, "deployments") as view:
        view.goto(gateway.address)
        other = view.locator('[data-deployment="west"]')
        playwright.expect(other).to_contain_text("1 of 1 queues needs attention")
        other.get_by_role("link", name="west").click()
        playwright.expect(view).to_have_url(f"{base}/")
        here = view.get_by_role("navigation", name="Deployments").locator('[aria-current="true"]')
        playwright.expect(here).to_have_text("west")
        view.get_by_role("link", name=name, exact=True).first.click()
        playwright.expect(view.locator("#chart canvas")).to_be_visible()
        view.get_by_role("button", name="Pause…").click()
        view.get_by_role("dialog").get_by_role("button", name=re.compile("^Pause")).click()
        notice(view, "Deliveries are stopped")
        assert gateway.http.get(f"{base}/v1/queues/{name}").json()["paused"] == 1
        assert gateway.depth("orders")["paused"] == 0
        assert '"deployment": "west"' in gateway.process.text, "the audit record says where"

        view.goto(gateway.address)
        shot(view, gateway, "deployments")
        west.workers[0].kill()
        playwright.expect(other).to_contain_text("1 of 1 queues needs attention")
        view.goto(f"{base}/")
        needs = view.locator(".needs")
        playwright.expect(needs).to_contain_text("Start a worker", timeout=40_000)
        west.worker().wait_for_shards(1)
        playwright.expect(needs).to_contain_text("deliveries are paused", timeout=40_000)

        view.goto(gateway.address)
        own_kafka.kill()
        playwright.expect(other).to_contain_text(re.compile("do not answer|no broker|answers"), timeout=60_000)
        until(lambda: gateway.depth("orders")["depth"] == 0, "the first deployment is served", 10)
    context = browser.new_context()  # whose console has a line about the status of the page
    page = context.new_page()
    again = page.locator("[data-again]")
    # For five seconds the page is painted by the last list of topics.
    until(lambda: (page.goto(f"{base}/console/queues/{name}"), again.count())[1], "the page without a broker")
    playwright.expect(again).to_contain_text("This page tries again every")
    own_kafka.start()
    playwright.expect(page.locator("#chart")).to_be_visible(timeout=60_000)
    context.close()


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("west", "expected NAME=FILE, such as west=west/lapse.toml"),
        ("West End=lapse.toml", "a name has small letters, digits and dashes"),
        ("west=nowhere.toml", "nowhere.toml"),
    ],
)
def test_a_deployment_that_cannot_be_served_is_refused_at_the_start(deploy: Deploy, option: str, says: str) -> None:
    done = deploy({"orders": {}}).lapse("gateway", "--port", "0", "--deployment", option)
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr

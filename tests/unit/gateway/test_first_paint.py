"""Pages of the console are there before workers and topics have answered: their parts ask again."""

import asyncio
import re
import threading
from dataclasses import replace

import httpx
import pytest

from lapse.protocol import topic
from lapse_client import Connection
from lapse_client.error import ConnectionFailed
from lapse_gateway import Gateway, Settings, Users, subscription, tail
from lapse_gateway.application import application
from lapse_gateway.clients import Clients
from lapse_gateway.console import deployments, overview, queues
from lapse_gateway.console.entities import Entities
from lapse_gateway.console.watch import Look, Watch
from lapse_gateway.figures import Figures

TOPICS = dict.fromkeys(
    [*("orders", "prices"), topic.commands("orders"), topic.commands("prices"), topic.sow("prices")], 1
)
FOR_EVER_S = 3_600.0


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    """A gateway to a cluster whose workers never answer; who waits for one waits for ever."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    for place in (overview, queues):
        monkeypatch.setattr(place, "FIRST_S", 0.01)
        monkeypatch.setattr(place, "PATIENCE_S", FOR_EVER_S)
    for client in ("_queue", "_sow_topic", "_glance"):
        monkeypatch.setattr(Clients, client, never)
    monkeypatch.setattr(Connection, "partitions", lambda _: TOPICS)
    found = Gateway(Connection("127.0.0.1:1"), Settings(), Users())

    async def silent(_: Figures, patience_s: float = FOR_EVER_S) -> None:
        await asyncio.sleep(patience_s)

    monkeypatch.setattr(Figures, "look", silent)
    monkeypatch.setattr(deployments, "_PATIENCE_S", FOR_EVER_S)
    return found


def got(gateway: Gateway, path: str, **headers: str) -> httpx.Response:
    async def get() -> httpx.Response:
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            async with asyncio.timeout(30):
                return await client.get(path, headers=headers)

    return asyncio.run(get())


@pytest.mark.feature("Q15")
@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/", "/console/live"),
        ("/console/queues/orders", "/console/queues/orders/live"),
        ("/console/queues/orders/message?bookmark=orders:0:0", "/console/queues/orders/message/now"),
        ("/console/letters/orders", "/console/letters/orders/found"),
        ("/console/sow/prices", "/console/sow/prices/live"),
    ],
)
def test_a_page_is_there_before_anybody_has_answered(gateway: Gateway, path: str, part: str) -> None:
    page = got(gateway, path)
    assert page.status_code == 200
    (triggers,) = re.findall(rf'hx-get="{part}[^"]*"[^>]*hx-trigger="([^"]*)"', page.text)
    assert triggers.split(",")[0] == "load", "what is missing is asked for at once"
    blocking = re.findall(r'<link rel="stylesheet" href="([^?"]*)', page.text.partition("</head>")[0])
    assert blocking == ["/console/static/console.css"]
    assert all(" defer" in script for script in re.findall(r"<script[^>]*>", page.text))


def test_the_sum_over_queues_that_have_not_answered_is_not_zero(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOPICS, topic.commands("more"), 1)
    assert set(re.findall(r'data-total="\w+">([^<]*)<', got(gateway, "/").text)) == {"–"}


def test_a_file_is_kept_by_the_browser_under_the_name_of_its_content(gateway: Gateway) -> None:
    addresses = set(re.findall(r'"(/console/static/[^"]*)"', got(gateway, "/console/queues/orders").text))
    assert {one.partition("?")[0].rpartition("/")[2] for one in addresses} == {
        *("icon.svg", "console.css", "htmx.min.js", "uPlot.iife.min.js", "console.js", "uPlot.min.css")
    }
    for address in addresses:
        plain = got(gateway, address, **{"Accept-Encoding": "identity"})
        packed = got(gateway, address, **{"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == plain.content
        for answer in (plain, packed):
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["vary"] == "Accept-Encoding"
        other = got(gateway, f"{address}0")
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-store"), "it may be another's text"


@pytest.mark.feature("X7")
@pytest.mark.parametrize(("status", "again"), [(503, True), (404, False)])
def test_a_page_that_cannot_be_shown_for_the_moment_asks_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, status: int, again: bool
) -> None:
    def away(_: Connection) -> dict[str, int]:
        raise ConnectionFailed("127.0.0.1:1", "refused")

    if again:
        monkeypatch.setattr(Connection, "partitions", away)
        monkeypatch.setattr(gateway.entities, "_ask", gateway.connection.partitions)
    page = got(gateway, "/console/queues/orders" if again else "/console/queues/Orders/")
    page = page if again else got(gateway, "/console/static/nothing.css")
    assert page.status_code == status
    assert ("data-again" in page.text) is ("console.js" in page.text) is again


@pytest.mark.feature("X7")
def test_topics_that_are_slow_to_list_keep_only_the_first_page_waiting() -> None:
    async def looks() -> None:
        here, asked = asyncio.get_running_loop(), asyncio.Queue[asyncio.Future[dict[str, int]]]()

        async def answer() -> dict[str, int]:
            found = here.create_future()
            asked.put_nowait(found)
            return await found

        entities = Entities(lambda: asyncio.run_coroutine_threadsafe(answer(), here).result(30))
        first = [asyncio.create_task(entities.look(0)) for _ in range(3)]
        (await asked.get()).set_result({"a": 1})
        assert await asyncio.gather(*first) == [{"a": 1}] * 3
        assert asked.empty(), "who asks together asks once"

        entities._at_s = -1e9  # what is known is old
        assert await entities.look(0) == {"a": 1}, "while the next look is under way"
        failing = asyncio.create_task(entities.look(30))
        (await asked.get()).set_exception(ConnectionFailed("b:1", "away"))
        for look in (failing, entities.look(0)):
            with pytest.raises(ConnectionFailed):
                await look

        entities._at_s = -1e9
        again = asyncio.create_task(entities.look(30))
        (await asked.get()).set_result({"a": 1, "b": 1})
        assert await again == {"a": 1, "b": 1}

    asyncio.run(looks())


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/events/orders"),
        ("GET", "/v1/sow/prices/follow"),
        ("POST", "/v1/queues/orders/receive?subscription="),
    ],
)
def test_what_has_not_begun_yet_counts_among_the_most_that_may_be_open(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    gateway.settings = replace(gateway.settings, most_subscriptions=2)
    gateway.subscriptions._most = 2
    monkeypatch.setattr(tail, "MOST_TAILS", 2)
    gate = threading.Event()
    monkeypatch.setattr(tail, "EventReader", lambda *_, **__: gate.wait(20))

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(subscription, "check_kind", never)

    async def ask() -> set[int]:
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            asked = [
                asyncio.ensure_future(client.request(method, f"{path}{number if path.endswith('=') else ''}"))
                for number in range(3)
            ]
            done, under_way = await asyncio.wait(asked, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            for one in under_way:
                one.cancel()
            gate.set()
            await asyncio.gather(*asked, return_exceptions=True)
            return {one.result().status_code for one in done}

    assert asyncio.run(ask()) == {503}
    assert (gateway.tails, gateway.streams, gateway.subscriptions._beginning) == (0, 0, 0)


@pytest.mark.feature("Q15")
@pytest.mark.parametrize("path", ["/", "/console/queues/orders", "/console/letters/orders", "/console/sow/prices"])
def test_a_list_of_topics_that_is_seconds_old_paints_a_page(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Kafka takes a while to list thousands of topics, so the next list is asked for beside the page."""
    monkeypatch.setattr(overview, "FIRST_S", FOR_EVER_S)
    monkeypatch.setattr(Watch, "look", lambda _, __, names, *___, **____: _looks(names))
    monkeypatch.setattr(Figures, "look", lambda *_, **__: asyncio.sleep(0))
    listed = threading.Event()
    tries = iter([TOPICS])

    def list_topics(_: Connection) -> dict[str, int]:
        return next(tries, None) or (listed.wait(20), TOPICS)[1]

    monkeypatch.setattr(Connection, "partitions", list_topics)
    monkeypatch.setattr(gateway.entities, "_ask", gateway.connection.partitions)

    async def get() -> list[int]:
        transport = httpx.ASGITransport(app=application(gateway))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            first = await client.get(path)
            gateway.entities._at_s -= 3  # the list is three seconds old, and a newer one does not come
            try:
                async with asyncio.timeout(10):
                    second = await client.get(path)
            finally:
                listed.set()
            return [first.status_code, second.status_code]

    assert asyncio.run(get()) == [200, 200]


async def _looks(names: list[str]) -> list[Look]:
    return [Look(name) for name in names]

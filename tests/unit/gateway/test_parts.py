"""Parts of the gateway: payloads in JSON and in headers, the rate limit, parameters, events, the description."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from urllib.parse import unquote_to_bytes

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.entitlement import Entitlement, Right
from lapse.core.generation import position_of
from lapse.protocol import header, packed_delivery
from lapse.testing import Lapse
from lapse_client import Connection
from lapse_client.aio import Delivery, Queue
from lapse_client.delivery.lot import PackedLot
from lapse_client.error import EntityDeleted, UnknownEntity
from lapse_client.session.shard import Shard
from lapse_gateway import Gateway, Settings, User, Users, payload
from lapse_gateway.application import application
from lapse_gateway.clients import _Pool
from lapse_gateway.events import event, stream
from lapse_gateway.fault import Fault
from lapse_gateway.publishing import Message
from lapse_gateway.rate import RateLimit
from lapse_gateway.receiving import delivery_as_json
from lapse_gateway.settling import _held_by_subscription
from lapse_gateway.subscription import Subscription, Subscriptions, Terms, receipt
from lapse_gateway.user import Authenticator


@given(st.none() | st.binary() | st.text().map(str.encode) | st.floats().map(orjson.dumps))
def test_a_payload_that_is_reported_can_be_published_again_byte_for_byte(value: bytes | None) -> None:
    published = orjson.loads(orjson.dumps(payload.shown(value)))
    content = Message.model_validate(published or {"delete": True, "key": "k"}).content()
    if "value" in published:
        assert orjson.loads(content) == orjson.loads(value)  # type: ignore[arg-type]
    else:
        assert content == value


@pytest.mark.feature("S3", "X7")
def test_a_message_that_is_not_to_be_deleted_is_not() -> None:
    assert Message.model_validate({"delete": False, "key": "A", "value": 1}).content() == b"1"
    with pytest.raises(ValueError, match="0 are given"):
        Message.model_validate({"delete": False, "key": "A"})


def test_the_digits_of_a_number_are_reported_as_they_are() -> None:
    assert b'"value":{"price": 1.10, "id": 123456789012345678}' in orjson.dumps(
        payload.shown(b'{"price": 1.10, "id": 123456789012345678}')
    )


@given(st.lists(st.tuples(st.from_regex(r"[a-z][a-z0-9 é/:-]{0,9}", fullmatch=True), st.binary())))
def test_headers_of_a_message_go_through_http_unharmed(headers: list[tuple[str, bytes]]) -> None:
    sent = payload.message_headers_in_http(headers)
    assert all(text.isascii() and "\n" not in text and "\r" not in text for pair in sent for text in pair)
    raw = [(name.lower().encode(), text.strip(" ").encode()) for name, text in sent]  # HTTP drops outer spaces
    assert payload.message_headers_from_http(raw) == headers


def test_spaces_around_a_key_or_header_are_not_lost() -> None:
    for value in (b" a b ", b"  ", b" ", b"a ", b"", b"%20"):
        text = payload.in_http_header(value)
        assert unquote_to_bytes(text.strip(" ")) == value, text
    assert payload.in_http_header(b"a b") == "a b", "others stay readable"


TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.feature("X3")
@pytest.mark.parametrize(
    ("own", "request_headers", "kept"),
    [
        ([("a", b"b")], [(b"traceparent", TRACE)], [("a", b"b"), ("traceparent", TRACE)]),
        ([], [(b"tracestate", b"k=v"), (b"traceparent", TRACE)], [("traceparent", TRACE), ("tracestate", b"k=v")]),
        ([("Traceparent", b"own")], [(b"traceparent", TRACE)], [("Traceparent", b"own")]),
        ([], [(b"traceparent", b"nonsense"), (b"tracestate", b"k=v")], []),
        ([], [(b"traceparent", b"ff" + TRACE[2:])], []),
        ([], [(b"tracestate", b"k=v")], []),
    ],
)
def test_a_message_gets_the_trace_of_the_request_that_publishes_it(
    own: list, request_headers: list, kept: list
) -> None:
    assert payload.with_trace(own, payload.trace_of(request_headers)) == kept


def test_a_rate_is_kept_and_each_has_their_own() -> None:
    now = [0.0]
    limit = RateLimit(2, lambda: now[0])
    for who in ("alice", "bob"):
        limit.check(who)
        limit.check(who)
        with pytest.raises(Fault, match="more than 2 requests a second: wait 1 s"):
            limit.check(who)
    now[0] = 0.5
    limit.check("alice")
    with pytest.raises(Fault):
        limit.check("alice")


def test_a_slow_rate_lets_one_request_pass() -> None:
    now = [0.0]
    limit = RateLimit(0.1, lambda: now[0])
    limit.check("alice")
    with pytest.raises(Fault, match="wait 10 s") as refused:
        limit.check("alice")
    assert refused.value.headers == {"Retry-After": "10"}


@pytest.mark.feature("X4")
def test_a_user_is_known_by_any_of_their_keys_and_signs_with_the_first() -> None:
    users = Users(users={"alice": User(name="alice", keys=(b"first-key-of-alice", b"other-key-of-alice"))})
    door = Authenticator(Connection("nowhere:1"), users)
    for key in ("first-key-of-alice", "other-key-of-alice"):
        caller = door.caller(f"Bearer {key}")
        assert (caller.name, caller.connection.user, caller.connection.secret) == (
            "alice",
            "alice",
            "first-key-of-alice",
        )
    assert "key-of" not in repr(users)


@pytest.mark.feature("X4", "Q2")
def test_who_may_publish_to_an_entity_may_write_to_its_topics_and_to_no_other() -> None:
    entitled = {"orders": Entitlement(frozenset({Right.PUBLISH})), "looked": Entitlement(frozenset({Right.READ}))}
    readers = {
        "orders-in": frozenset({"orders"}),
        "looked": frozenset({"looked"}),
        "both": frozenset({"looked", "orders"}),
    }
    door = Authenticator(
        Connection("nowhere:1"), Users(users={"a": User(name="a", keys=(b"a-key-of-16-bytes",), entitlements=entitled)})
    )
    caller = door.caller("Bearer a-key-of-16-bytes")
    for topic in ("orders-in", "orders", "both"):
        caller.check_publish(topic, readers.get(topic, frozenset()))
    for topic in ("looked", "elsewhere"):
        with pytest.raises(Fault, match="lacks publish"):
            caller.check_publish(topic, readers.get(topic, frozenset()))


@pytest.mark.feature("X4")
def test_who_asks_for_what_is_not_there_learns_no_names_that_are_not_theirs() -> None:
    entitled = {"orders": Entitlement(frozenset({Right.READ}))}
    users = Users(users={"a": User(name="a", keys=(b"a-key-of-16-bytes",), entitlements=entitled)})
    caller = Authenticator(Connection("nowhere:1"), users).caller("Bearer a-key-of-16-bytes")
    error = UnknownEntity("queue", "order", ["orders", "order-secrets", "payroll"]).among(caller.may_see_some)
    assert error.known == ("orders",)
    assert "did you mean 'orders'? there is: orders." in str(error)


@pytest.mark.feature("X7")
def test_the_nearest_of_many_names_is_reported_without_the_others() -> None:
    many = [f"orders-{number}" for number in range(30)]
    assert "did you mean 'orders-17'? Correct the name" in str(UnknownEntity("queue", "order-17", many))
    assert "there is: orders-0, orders-1, " in str(UnknownEntity("queue", "payroll", many))


@pytest.mark.feature("X7")
def test_a_browser_is_informed_on_a_page_that_nothing_is_there() -> None:
    app = application(Gateway(Connection("nowhere:1"), Settings(), Users()))

    async def asked(accept: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            return await client.get("/deployments/nope/", headers={"Accept": accept})

    page = asyncio.run(asked("text/html,application/xhtml+xml"))
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (404, "text/html")
    assert "there is no /deployments/nope/" in page.text
    assert asyncio.run(asked("*/*")).json()["error"]["code"] == "unknown_path"


@pytest.mark.feature("Q15")
def test_a_failure_of_the_gateway_itself_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert LapseGatewayFails looks at answers of 500, too."""

    def fails(*_: object) -> None:
        raise RuntimeError("nobody expects it")

    monkeypatch.setattr(Connection, "await_broker", fails)
    gateway = Gateway(Connection("127.0.0.1:1"), Settings(), Users())

    async def ask() -> int:
        transport = httpx.ASGITransport(app=application(gateway), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return (await client.get("/ready")).status_code

    assert asyncio.run(ask()) == 500
    assert gateway.requests.counts == {("GET", "/ready", 500): 1}


def test_a_payload_with_line_ends_stays_one_event() -> None:
    events = event("delivery", payload.shown(b'{"a":\r\n1,\n"b": 2}'), "t:0:1#1@1").decode()
    lines = events.splitlines()
    assert lines[:2] == ["id: t:0:1#1@1", "event: delivery"]
    assert events.endswith("\n\n")
    assert events.count("\n\n") >= 1
    data = "\n".join(line.removeprefix("data: ") for line in lines[2:] if line)
    assert orjson.loads(data) == {"value": {"a": 1, "b": 2}}
    assert all(line.startswith("data: ") for line in lines[2:] if line)


@pytest.mark.parametrize("sent_before", [0, 1, 2])
def test_a_stream_is_tidied_up_once_however_early_its_reader_leaves(sent_before: int) -> None:
    ended: list[str] = []

    async def events() -> AsyncGenerator[bytes, None]:
        while True:
            yield b"data: 1\n\n"

    async def run() -> None:
        left = asyncio.Event()
        sent: list[object] = []

        async def receive() -> dict[str, object]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            sent.append(message)
            if len(sent) > sent_before:
                left.set()
                await asyncio.sleep(60)  # a client that reads no more

        async def end() -> None:
            ended.append("once")

        gateway = Gateway(Connection("127.0.0.1:1"), Settings(), Users())
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        async with asyncio.timeout(20):
            await stream(gateway, events(), end)(scope, receive, send)

    asyncio.run(run())
    assert ended == ["once"]


@pytest.mark.feature("X4")
def test_a_right_on_a_queue_shows_no_other_topic() -> None:
    entitled = {"orders": Entitlement(frozenset({Right.READ}))}
    users = Users(users={"a": User(name="a", keys=(b"a-key-of-16-bytes",), entitlements=entitled)})
    caller = Authenticator(Connection("nowhere:1"), users).caller("Bearer a-key-of-16-bytes")
    caller.check_reads("orders", "orders-in", frozenset({"orders"}))
    with pytest.raises(Fault, match="orders does not read salaries"):
        caller.check_reads("orders", "salaries", frozenset({"elsewhere"}))


def _delivery(offset: int) -> Delivery:
    columns = packed_delivery.column("q", [offset]), packed_delivery.column("q", [1]), packed_delivery.column("I", [3])
    packed = packed_delivery.decode(packed_delivery.encode("orders-in", 2, *columns, [b"x"]))
    fields = {header.LEASE_UNTIL_MS: b"5", header.EPOCH: b"7"}
    return Delivery(PackedLot(None, Shard(0, "orders", 2), packed, fields), 0)  # type: ignore[arg-type]


@pytest.mark.feature("X3")
@given(st.integers(0, 1 << 40), st.integers(0, 3))
def test_a_delivery_is_reported_by_its_bookmark(offset: int, generation: int) -> None:
    delivery = _delivery(position_of(offset, generation))
    fields = delivery_as_json(delivery)
    assert (fields["bookmark"], fields["receipt"]) == (str(delivery.bookmark), receipt(delivery))
    assert (fields["delivery_count"], fields["lease_until_ms"], fields["timestamp_ms"]) == (3, 5, 1)


@pytest.mark.feature("Q8", "X7")
def test_of_receipts_with_a_false_one_among_them_none_is_taken() -> None:
    holder = SimpleNamespace(held={receipt(one): one for one in map(_delivery, range(3))})
    names = list(holder.held)
    with pytest.raises(ValueError, match="expected topic:partition:offset"):
        _held_by_subscription("acknowledge", [holder], [*names, "nonsense"])  # type: ignore[list-item]
    assert list(holder.held) == names
    found, others = _held_by_subscription("acknowledge", [holder], [names[1], "orders-in:2:9", names[1]])  # type: ignore[list-item]
    assert ([len(some) for _, some in found], list(others), len(holder.held)) == ([1], ["orders-in:2:9"], 2)


@pytest.mark.feature("X3", "Q3")
@pytest.mark.parametrize("turns", range(8))
def test_what_comes_as_its_reader_leaves_is_for_the_next_one(turns: int) -> None:
    delivery = _delivery(0)

    async def run() -> list[Delivery]:
        came = asyncio.Event()

        async def batches(most: int, timeout: float) -> AsyncGenerator[list[Delivery], None]:  # noqa: ASYNC109
            await came.wait()
            came.clear()
            yield [delivery]

        subscriber = SimpleNamespace(batches=batches)
        subscription = Subscription("orders", "w", Terms(max_backlog=1), subscriber, lambda: 0.0)  # type: ignore[arg-type]
        reading = asyncio.ensure_future(subscription.take(1, 60, asyncio.Event().wait))
        for _ in range(4):
            await asyncio.sleep(0)
        came.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        if not reading.cancel():
            return reading.result()
        with pytest.raises(asyncio.CancelledError):
            await reading
        next_one = subscription.take(1, 60, asyncio.Event().wait)
        async with asyncio.timeout(20):
            return await next_one

    assert asyncio.run(run()) == [delivery]


@pytest.mark.feature("X3")
def test_a_request_that_failed_over_an_old_client_leaves_the_new_one_open() -> None:
    class Asked:
        closed = False

        async def close(self) -> None:
            self.closed = True

    async def make(*_: object) -> Asked:
        return Asked()

    async def run() -> list[bool]:
        pool, caller = _Pool(make), Authenticator(Connection("nowhere:1"), Users()).everybody
        uses = [pool.use(caller, "orders") for _ in range(3)]
        old = [await use.__aenter__() for use in uses[:2]]
        error = EntityDeleted("orders", "deleted")
        assert not await uses[0].__aexit__(EntityDeleted, error, None)
        new = await uses[2].__aenter__()
        assert not await uses[1].__aexit__(EntityDeleted, error, None)
        return [one.closed for one in (*old, new)]

    assert asyncio.run(run()) == [True, True, False]


@pytest.mark.feature("X3", "Q3")
def test_what_is_given_back_is_for_who_waits_already() -> None:
    delivery = _delivery(0)

    async def batches(most: int, timeout: float) -> AsyncGenerator[list[Delivery], None]:  # noqa: ASYNC109
        await asyncio.Event().wait()
        yield []

    async def run() -> list[Delivery]:
        subscriber = SimpleNamespace(batches=batches)
        subscription = Subscription("orders", "w", Terms(max_backlog=1), subscriber, lambda: 0.0)  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(subscription.take(1, 60, asyncio.Event().wait))
        for _ in range(4):
            await asyncio.sleep(0)
        subscription.give_back([delivery])
        async with asyncio.timeout(10):
            return await waiting

    assert asyncio.run(run()) == [delivery]


@pytest.mark.feature("X3", "Q5")
@pytest.mark.parametrize(("is_seen", "now_ms", "ends"), [(False, 0, True), (True, 4, False), (True, 5, True)])
def test_an_idle_subscription_ends_unless_a_program_holds_a_lease(is_seen: bool, now_ms: int, ends: bool) -> None:
    """What its caller left unseen would wait for the end of its lease. Behind that end it would get other messages."""
    closed: list[str] = []

    async def batches(most: int, timeout: float) -> AsyncGenerator[list[Delivery], None]:  # noqa: ASYNC109
        yield [_delivery(0)]

    async def close() -> None:
        closed.append("w")

    async def run() -> None:
        subscriber = SimpleNamespace(batches=batches, close=close)
        subscription = Subscription("orders", "w", Terms(max_backlog=1), subscriber, lambda: now_ms)  # type: ignore[arg-type]
        taken = await subscription.take(1, 60, asyncio.Event().wait)
        if not is_seen:
            subscription.give_back(taken)
        subscriptions = Subscriptions(10, 0.0, 5.0)
        subscriptions._open["", "orders", "w"] = subscription
        await subscriptions.sweep()

    asyncio.run(run())
    assert closed == (["w"] if ends else [])


@pytest.mark.feature("X3")
def test_a_subscription_that_has_failed_is_closed() -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("w")

    async def run() -> None:
        subscriber = SimpleNamespace(close=close)
        subscription = Subscription("orders", "w", Terms(max_backlog=1), subscriber, lambda: 0.0)  # type: ignore[arg-type]
        subscriptions = Subscriptions(10, 60.0, 5.0)
        subscriptions._open["", "orders", "w"] = subscription
        await subscriptions.drop(subscription)
        assert len(subscriptions) == 0

    asyncio.run(run())
    assert closed == ["w"]


@pytest.mark.feature("Q3", "X3")
def test_a_request_may_take_more_or_less_than_the_one_that_began_its_subscription() -> None:
    async def run(lapse: Lapse) -> list[tuple[int | None, int]]:
        caller = Authenticator(lapse.connection, Users()).everybody
        open_ones = Subscriptions(10, 10, 5)
        wanted = (Terms(max_backlog=None, least=3), Terms(max_backlog=None, least=1), Terms(max_backlog=3, least=2))
        found = [await open_ones.get(caller, "orders", "me", one) for one in wanted]
        with pytest.raises(Fault, match="max_backlog=3"):
            await open_ones.get(caller, "orders", "me", Terms(max_backlog=4))
        await open_ones.close()
        return [(one.terms.max_backlog, one.requests) for one in found]

    with Lapse() as lapse:
        lapse.queue("orders")
        assert asyncio.run(run(lapse)) == [(3, 3)] * 3


@pytest.mark.feature("Q3", "X3")
@pytest.mark.parametrize("how", ["idle", "ended", "failed"])
def test_a_subscription_begins_again_while_the_one_before_it_ends(how: str) -> None:
    """The end of the first one must not end the second one, which has the same name."""

    async def run(lapse: Lapse) -> None:
        caller = Authenticator(lapse.connection, Users()).everybody
        open_ones, terms = Subscriptions(10, 0, 5), Terms(max_backlog=1)
        for _ in range(10):
            first = await open_ones.get(caller, "orders", "me", terms)
            open_ones.done(first)
            ways = {"idle": open_ones.sweep, "failed": lambda first=first: open_ones.drop(first)}
            ending = asyncio.create_task(
                open_ones.end(caller, "orders", "me") if how == "ended" else ways[how]()  # type: ignore[no-untyped-call]
            )
            for _turn in range(3):  # it begins to end
                await asyncio.sleep(0)
            second = await open_ones.get(caller, "orders", "me", terms)
            await ending
            assert second is not first
            async with Queue("orders", connection=lapse.connection) as queue:
                assert [one.subscription.partition("@")[0] for one in await queue.subscriptions()] == ["me"]
            open_ones.done(second)
            assert await open_ones.end(caller, "orders", "me")
        await open_ones.close()

    with Lapse() as lapse:
        lapse.queue("orders")
        asyncio.run(run(lapse))

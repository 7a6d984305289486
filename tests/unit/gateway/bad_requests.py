"""Bad requests, and what their sender is told: the cases of test_requests.py and of docs/bad-input.md (X7).

Each request goes through the whole application of a gateway, and is refused before it reaches Kafka.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from lapse.core.entitlement import Entitlement, Right
from lapse_client import Connection
from lapse_gateway import Gateway, Settings, User, Users, application

KEY: Final = "the key of alice, who reads"
USERS: Final = Users(
    users={
        "alice": User(
            name="alice", keys=(KEY.encode(),), entitlements={"orders": Entitlement(frozenset({Right.READ}), "/a = 1")}
        )
    }
)
NOBODY: Final = Users()
NOBODY_LISTENS: Final = Connection("127.0.0.1:1")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A request that is refused.

    Attributes:
        shown: how the page shows it.
        path: what is asked.
        code: of the refusal.
        status: of the refusal.
        method: how it is asked.
        body: what it carries.
        headers: what it says beside it.
        settings: of the gateway.
        users: of the gateway.
    """

    shown: str
    path: str
    code: str
    status: int = 400
    method: str = "POST"
    body: bytes | None = None
    headers: Mapping[str, str | bytes] | tuple[tuple[str, str], ...] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    users: Users = NOBODY


def _basic(user: str, key: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{key}'.encode()).decode()}"


def _batch(body: bytes, shown: str = "", code: str = "malformed") -> Case:
    """A batch of messages, shown as it is if nothing else is said."""
    return Case(shown=shown or f"`{body.decode()}`", path=_BATCH, body=body, code=code)


def _rewind(body: bytes, code: str = "invalid_argument") -> Case:
    """A rewind of messages, shown as it is."""
    return Case(shown=f"`{body.decode()}` to `…/rewind`", path="/v1/queues/orders/rewind", body=body, code=code)


def _sent_to(path: str, body: bytes) -> Case:
    """A body that a path does not take, shown as it is."""
    return Case(shown=f"`{body.decode()}` to `{path}`", path=path, body=body, code="malformed")


def _redrive(body: bytes, code: str = "malformed") -> Case:
    """A redrive of dead letters, shown as it is."""
    return Case(shown=f"`{body.decode()}` to `…/redrive`", path="/v1/letters/orders/redrive", body=body, code=code)


def _user(shown: str, authorization: str) -> Case:
    """A request of somebody who does not prove who they are."""
    headers = {"Authorization": authorization} if authorization else {}
    return Case(
        shown=shown, method="GET", path="/v1/queues", headers=headers, users=USERS, code="unauthenticated", status=401
    )


_RECEIVE: Final = "/v1/queues/orders/receive"
_BATCH: Final = "/v1/publish/orders/batch"
_ACKNOWLEDGE: Final = "/v1/queues/orders/acknowledge"
_BAD: Final = "invalid_argument"

CASES: Final = (
    Case(shown="`GET /v1/quues`", method="GET", path="/v1/quues", code="unknown_path", status=404),
    Case(shown="`GET /v1/queue/orders`", method="GET", path="/v1/queue/orders", code="unknown_path", status=404),
    Case(shown="`GET /v1/queues/`", method="GET", path="/v1/queues/", code="unknown_path", status=404),
    Case(shown="`GET /v1/orders`", method="GET", path="/v1/orders", code="unknown_path", status=404),
    Case(
        shown="`PUT /v1/queues/orders`",
        method="PUT",
        path="/v1/queues/orders",
        code="method_not_allowed",
        status=405,
    ),
    Case(
        shown="`GET /v1/queues/or%20ders`",
        method="GET",
        path="/v1/queues/or%20ders",
        code="unknown_entity",
        status=404,
    ),
    Case(shown="`POST …/receive` without a subscription", path=_RECEIVE, code=_BAD),
    Case(shown="`POST …/receive?subscription=`", path=f"{_RECEIVE}?subscription=", code=_BAD),
    Case(shown="`POST …/receive?subscription=w&filter=`", path=f"{_RECEIVE}?subscription=w&filter=", code=_BAD),
    *(
        Case(shown=f"`GET {path}?{what}=`", method="GET", path=f"{path}?{what}=", code=_BAD)
        for path, what in (
            ("/v1/queues/orders", "filter"),
            ("/v1/queues/orders/messages", "filter"),
            ("/v1/letters/orders", "filter"),
            ("/v1/sow/prices/records", "filter"),
            ("/v1/sow/prices/records", "order_by"),
            ("/v1/sow/prices/follow", "filter"),
            ("/v1/sow/prices/scheduled", "filter"),
        )
    ),
    Case(shown="`…&max=many`", path=f"{_RECEIVE}?subscription=w&max=many", code=_BAD),
    Case(shown="`…&max=0`", path=f"{_RECEIVE}?subscription=w&max=0", code=_BAD),
    Case(shown="`…&max=5&max_backlog=2`", path=f"{_RECEIVE}?subscription=w&max=5&max_backlog=2", code=_BAD),
    Case(shown="`…&wait_s=3600`", path=f"{_RECEIVE}?subscription=w&wait_s=3600", code=_BAD),
    Case(shown="`…&wait=5`", path=f"{_RECEIVE}?subscription=w&wait=5", code=_BAD),
    Case(shown="`…&format=xml`", path=f"{_RECEIVE}?subscription=w&format=xml", code=_BAD),
    Case(shown="`…&format=raw&max=2`", path=f"{_RECEIVE}?subscription=w&format=raw&max=2", code=_BAD),
    Case(shown="`…&subscription=w` twice", path=f"{_RECEIVE}?subscription=w&subscription=w", code=_BAD),
    Case(shown="`…?subscription=%FF`", path=f"{_RECEIVE}?subscription=%FF", code=_BAD),
    Case(shown="`POST …/receive` with a body", path=f"{_RECEIVE}?subscription=w", body=b"{}", code="malformed"),
    Case(shown="`POST /v1/publish/orders?ttl_ms=soon`", path="/v1/publish/orders?ttl_ms=soon", code=_BAD),
    Case(shown="`POST /v1/publish/orders?ttl_ms=-1`", path="/v1/publish/orders?ttl_ms=-1", code=_BAD),
    Case(
        shown="`POST /v1/publish/orders?expires_at_ms=tomorrow`",
        path="/v1/publish/orders?expires_at_ms=tomorrow",
        code=_BAD,
    ),
    Case(
        shown="`POST /v1/publish/orders?ttl_ms=5&expires_at_ms=6`",
        path="/v1/publish/orders?ttl_ms=5&expires_at_ms=6",
        code=_BAD,
    ),
    Case(
        shown="`POST /v1/publish/orders?enqueue_at_ms=later`", path="/v1/publish/orders?enqueue_at_ms=later", code=_BAD
    ),
    Case(shown="`POST /v1/publish/orders?message_id=`", path="/v1/publish/orders?message_id=", code=_BAD),
    Case(shown="`POST /v1/publish/orders?delta=maybe`", path="/v1/publish/orders?delta=maybe", code=_BAD),
    Case(shown="`POST /v1/publish/orders?delete=true` without a key", path="/v1/publish/orders?delete=true", code=_BAD),
    Case(shown="`GET …/records?skip=-1`", method="GET", path="/v1/sow/prices/records?skip=-1", code=_BAD),
    Case(shown="`GET …/records?top_n=0`", method="GET", path="/v1/sow/prices/records?top_n=0", code=_BAD),
    Case(shown="`GET …/follow?mode=fast`", method="GET", path="/v1/sow/prices/follow?mode=fast", code=_BAD),
    Case(
        shown="`POST /v1/publish/lapse.orders.commands`",
        path="/v1/publish/lapse.orders.commands",
        body=b"{}",
        code="forbidden",
        status=403,
    ),
    Case(shown="a batch without a body", path=_BATCH, code="malformed"),
    _batch(b'{"messages": [{"value": {"a": 1, "a": 2}}]}'),
    _rewind(b'{"to": "end", "to": "beginning"}', "malformed"),
    _batch(b"[1]", "`[1]` as a batch"),
    _batch(b"1", "`1` as a batch"),
    _batch(b'{"messages": [', '`{"messages": [` as a batch'),
    _batch('{"messages": [{"text": "ä"}]}'.encode("latin-1"), "a batch in Latin-1"),
    _batch(b'{"messages": []}'),
    _batch(b'{"messages": [{"value": 1, "txet": "a"}]}'),
    _batch(b'{"messages": [{"value": 1, "text": "a"}]}'),
    _batch(b'{"messages": [{"delete": true}]}'),
    _batch(b'{"messages": [{"delete": false, "key": "A"}]}'),
    _batch(b'{"messages": [{"value": 1, "ttl_ms": "60000"}]}'),
    _batch(b'{"messages": [{"base64": "?"}]}', code=_BAD),
    _batch(b'{"messages": [{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", "100,000 arrays inside each other"),
    Case(
        shown="a body of 2,000 bytes where the gateway takes 1,024",
        path="/v1/publish/orders",
        body=b"x" * 2_000,
        settings={"largest_body": 1_024},
        code="too_large",
        status=413,
    ),
    Case(
        shown="`Content-Encoding: gzip`",
        path="/v1/publish/orders",
        body=b"\x1f\x8b",
        headers={"Content-Encoding": "gzip"},
        code="unsupported_encoding",
        status=415,
    ),
    Case(
        shown="`Lapse-Header-: x`",
        path="/v1/publish/orders",
        body=b"x",
        headers={"Lapse-Header-": "x"},
        code=_BAD,
    ),
    Case(
        shown="a header of 100,000 bytes",
        path="/v1/publish/orders",
        body=b"x",
        headers={"X": "x" * 100_000},
        code="too_large",
        status=413,
    ),
    Case(shown="`POST …/acknowledge` of nothing", path=_ACKNOWLEDGE, body=b"{}", code=_BAD),
    Case(shown="`Lapse-Receipt: orders:0`", path=_ACKNOWLEDGE, headers={"Lapse-Receipt": "orders:0"}, code=_BAD),
    Case(
        shown="`Lapse-Receipt` twice",
        path=_ACKNOWLEDGE,
        headers=(("Lapse-Receipt", "orders:0:1#1@5"), ("Lapse-Receipt", "orders:0:2#1@5")),
        code=_BAD,
    ),
    Case(
        shown='`{"receipts": ["orders:0:1"], "filter": "TRUE"}`',
        path=_ACKNOWLEDGE,
        body=b'{"receipts": ["orders:0:1"], "filter": "TRUE"}',
        code=_BAD,
    ),
    Case(
        shown='`{"receipts": ["orders:0:1"], "delay_ms": 5}`',
        path=_ACKNOWLEDGE,
        body=b'{"receipts": ["orders:0:1"], "delay_ms": 5}',
        code=_BAD,
    ),
    Case(
        shown="`POST …/renew` of what nobody holds here",
        path="/v1/queues/orders/renew",
        headers={"Lapse-Receipt": "orders:0:1#1@5"},
        code="unknown_subscription",
        status=409,
    ),
    Case(
        shown='`{"filter": "TRUE"}` to `…/renew`',
        path="/v1/queues/orders/renew",
        body=b'{"filter": "TRUE"}',
        code=_BAD,
    ),
    Case(shown="`{}` to `…/purge`", path="/v1/queues/orders/purge", body=b"{}", code=_BAD),
    Case(
        shown="`GET /v1/figures/orders` where no worker's figures are known",
        method="GET",
        path="/v1/figures/orders",
        code="no_figures",
        status=404,
    ),
    Case(
        shown="`GET /v1/events/orders?since_ms=yesterday`",
        method="GET",
        path="/v1/events/orders?since_ms=yesterday",
        code=_BAD,
    ),
    _rewind(b"{}", "malformed"),
    _rewind(b'{"to": "yesterday"}'),
    _rewind(b'{"to": true}', "malformed"),
    _rewind(b'{"to": "beginning", "lifetimes": "old"}', "malformed"),
    _rewind(b'{"to": "beginning", "id": ""}', "malformed"),
    Case(shown="`GET /v1/letters/orders?reason=old`", method="GET", path="/v1/letters/orders?reason=old", code=_BAD),
    Case(
        shown="`GET /v1/queues/orders/messages?state=gone`",
        method="GET",
        path="/v1/queues/orders/messages?state=gone",
        code=_BAD,
    ),
    _sent_to("/v1/queues/orders/renew", b'{"receipts": ["orders:0:1"], "lease_ms": 0}'),
    _sent_to("/v1/queues/orders/expire", b'{"receipts": ["orders:0:1"], "fault": 5}'),
    _sent_to("/v1/queues/orders/purge", b'{"all": true, "leased": "yes"}'),
    _sent_to("/v1/sow/prices/delete", b'{"keys": "A"}'),
    _sent_to("/v1/sow/prices/withdraw", b'{"bookmarks": "prices:0:1"}'),
    _batch(b'{"messages": [{"value": 1, "key_base64": 5}]}'),
    _batch(b'{"messages": [5.5]}'),
    _batch(b'{"messages": [{"value": 1, "headers": {"a": 5}}]}'),
    _batch(b'{"messages": [{"value": 1, "headers": {"a": {"base64": 5}}}]}'),
    _batch(b'{"messages": [{"value": 1, "headers": {"a": {"b64": "AQ=="}}}]}'),
    _batch(b'{"messages": [{"value": 1, "headers": [["a", []]]}]}'),
    _batch(b'{"messages": [{"value": 1, "headers": [["a", "b", "c"]]}]}'),
    _batch(b'{"messages": [{"value": 1, "headers": ["ab"]}]}'),
    _batch(b'{"messages": [{"value": 1, "headers": [[5, "b"]]}]}'),
    _batch(b'{"messages": [{"value": 1, "headers": "a"}]}'),
    _batch(b'{"messages": [{"value": 1, "ttl_ms": 123456789012345678901234567890}]}'),
    _rewind(b'{"to": 5.5}', "malformed"),
    _rewind(b'{"to": null}', "malformed"),
    _rewind(b'{"to": ["beginning"]}', "malformed"),
    _rewind(b'{"to": 123456789012345678901234567890}', "malformed"),
    _rewind(b'{"to": "beginning", "handed_over": 1}', "malformed"),
    _rewind(b'{"to": "beginning", "dry_run": "yes"}', "malformed"),
    _redrive(b'{"dry_run": "yes"}'),
    _redrive(b'{"again": "yes"}'),
    _redrive(b'{"overwrite": 1}'),
    _redrive(b'{"reason": "purged"}'),
    _redrive(b'{"reasons": ["old"]}'),
    _redrive(b'{"value": {"id": 1}}'),
    _redrive(b'{"letter": "dlq.orders:0:1", "value": 1, "text": "1"}'),
    _redrive(b'{"letter": "dlq.orders:0:1", "filter": "TRUE"}'),
    _redrive(b'{"letter": "orders"}', "invalid_argument"),
    _redrive(b'{"filter": ""}'),
    Case(
        shown="`DELETE …/subscriptions/w`, which is not open",
        method="DELETE",
        path="/v1/queues/orders/subscriptions/w",
        code="unknown_subscription",
        status=409,
    ),
    Case(
        shown="`DELETE …/subscriptions/a%2Fb%252F`, which is not open",
        method="DELETE",
        path="/v1/queues/orders/subscriptions/a%2Fb%252F",
        code="unknown_subscription",
        status=409,
    ),
    Case(
        shown="`POST …/receive?subscription=..`",
        path="/v1/queues/orders/receive?subscription=..",
        code="invalid_argument",
    ),
    Case(
        shown="a publish by a page of another site",
        path="/v1/publish/orders",
        body=b"x",
        headers={"Origin": "https://elsewhere.example"},
        code="other_origin",
        status=403,
    ),
    Case(
        shown="`Host: elsewhere.example:8080`, where there are no users",
        method="GET",
        path="/v1/queues",
        headers={"Host": "elsewhere.example:8080"},
        settings={"names": frozenset()},
        code="other_host",
        status=421,
    ),
    Case(
        shown="a publish to a gateway that is read only",
        path="/v1/publish/orders",
        body=b"x",
        settings={"read_only": True},
        code="read_only",
        status=403,
    ),
    _user("no user where there are users", ""),
    _user("a user with another one's key", _basic("alice", "the key of somebody else")),
    _user("`Authorization: Bearer nonsense`", "Bearer nonsense"),
    _user("`Authorization: Basic ???`", "Basic ???"),
    Case(
        shown="a publish by a user who may read",
        path="/v1/publish/orders",
        body=b"x",
        headers={"Authorization": _basic("alice", KEY)},
        users=USERS,
        code="forbidden",
        status=403,
    ),
    Case(
        shown="`GET /v1/explain?entity=orders…` by a user with a filter",
        method="GET",
        path="/v1/explain?bookmark=orders:0:1&entity=orders",
        headers={"Authorization": _basic("alice", KEY)},
        users=USERS,
        code="forbidden",
        status=403,
    ),
)


def ask(case: Case) -> httpx.Response:
    """Send a request, and return the answer."""
    app = application(Gateway(NOBODY_LISTENS, Settings(**case.settings), case.users))

    given = list(case.headers) if isinstance(case.headers, tuple) else dict(case.headers)

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            return await client.request(case.method, case.path, content=case.body, headers=given)

    return asyncio.run(asked())


def refusal_of(case: Case) -> str:
    """What the sender of a request is told."""
    text = ask(case).json()["error"]["text"]
    assert isinstance(text, str)
    return text

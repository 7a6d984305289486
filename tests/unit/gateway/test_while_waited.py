"""What takes long is done as long as its caller waits, and the gateway runs (X7)."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message

from lapse_client import Connection
from lapse_client.aio import reading
from lapse_client.letters.redriven import Redriven
from lapse_gateway import Gateway, Settings, Users, application, letters

BOOKMARK = "bookmark=orders:0:0"


class Endless:
    """A read that does not end by itself."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()
        self.ended = threading.Event()

    def letters(self, *_: object, **__: object) -> "_Letters":
        """Return a reader of what no filter chooses."""
        return _Letters(map(_letter, self._turns()))

    def history(self, *_: object, watcher: Any = lambda *_: None, **__: object) -> None:
        """Search, and say again and again how far that has come."""
        for turn in self._turns():
            watcher("events", turn, turn + 1)

    def _turns(self) -> Iterator[int]:
        turn = 0
        try:
            while not self.over.is_set():
                yield turn
                turn += 1
                self.begun.set()
        finally:
            self.ended.set()


class _Letters:
    """A reader of dead letters."""

    definitions, topic = None, "dlq.orders"

    def __init__(self, letters: Iterator[Any]) -> None:
        self._letters = letters

    def __iter__(self) -> Iterator[Any]:
        return self._letters


def _letter(turn: int) -> Any:
    return type("Letter", (), {"entity": "another", "expired_at_ms": turn, "timestamp_ms": turn})


async def answer(gateway: Gateway, path: str, query: str, gone: asyncio.Event) -> None:
    """Ask, and go away when `gone` is set."""

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None:
        pass

    target = {"path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": ""}
    scope = {"type": "http", "method": "GET", "http_version": "1.1", "scheme": "http", "client": None, "server": None}
    await application(gateway)({**scope, **target, "headers": [(b"host", b"localhost")]}, receive, send)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("leaves", ["the caller", "the gateway"])
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/letters/orders", ""),
        ("/console/letters/orders/found", "since=all"),
        ("/console/letters/orders/confirm", "since=all"),
        ("/v1/explain", BOOKMARK),
        ("/console/queues/orders/message/life", BOOKMARK),
    ],
)
def test_topics_are_read_as_long_as_somebody_waits(
    path: str, query: str, leaves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have millions of records. Each page that is opened again would read all of them beside the others."""
    endless = Endless()
    monkeypatch.setattr(letters, "DeadLetterReader", endless.letters)
    monkeypatch.setattr(letters.Known, "of", lambda *_: SimpleNamespace(redriven=Redriven(Connection("127.0.0.1:1"))))
    monkeypatch.setattr(letters, "_now_ms", lambda *_: 0)
    monkeypatch.setattr(reading, "sync_history", endless.history)
    monkeypatch.setattr(Connection, "partitions", lambda *_: {"orders": 1})

    async def ask() -> None:
        gateway, gone = Gateway(Connection("127.0.0.1:1"), Settings(), Users()), asyncio.Event()
        asked = asyncio.create_task(answer(gateway, path, query, gone))
        try:
            assert await asyncio.to_thread(endless.begun.wait, 20)
            (gone if leaves == "the caller" else gateway.stopping).set()
            async with asyncio.timeout(20):
                await asked
            assert await asyncio.to_thread(endless.ended.wait, 20)
        finally:
            endless.over.set()

    asyncio.run(ask())

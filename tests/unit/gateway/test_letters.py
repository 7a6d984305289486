"""Letters as the gateway counts and shows them: the latest ones, within a bound of memory (D2)."""

import asyncio
import itertools
import threading
from collections.abc import Iterator

import pytest
from starlette.types import Message

from lapse.protocol.bookmark import Bookmark
from lapse_client import Connection, DeadLetter
from lapse_gateway import Gateway, Settings, Users, application, letters
from lapse_gateway.letters import summary


def letter(offset: int, size_bytes: int) -> DeadLetter:
    return DeadLetter(
        key=b"k",
        value=bytes(size_bytes - 3),
        headers=[("h", b"v")],
        bookmark=Bookmark("dlq.orders", 0, offset),
        timestamp_ms=0,
        origin=None,
        entity="orders",
        reasons=("time_limit",),
        message="",
        delivery_count=0,
        cancel_count=0,
        expires_at_ms=None,
        expired_at_ms=0,
        redriven_count=0,
        lapse_id=str(offset),
    )


@pytest.mark.feature("D2", "X7")
@pytest.mark.parametrize(
    ("most", "most_bytes", "shown", "left_out"),
    [
        (10, 1_000, [4, 3, 2, 1, 0], 0),
        (2, 1_000, [4, 3], 0),
        (10, 250, [4, 3], 3),
        (3, 250, [4, 3], 1),
        (10, 1, [4], 4),
    ],
)
def test_the_latest_letters_are_shown_up_to_a_size_and_the_rest_is_counted(
    most: int, most_bytes: int, shown: list[int], left_out: int
) -> None:
    found = summary((letter(offset, 100) for offset in range(5)), most, most_bytes)
    assert [one.bookmark.offset for one in found.latest] == shown
    assert (found.count, found.reasons["time_limit"], found.left_out) == (5, 5, left_out)


@pytest.mark.feature("X7")
@pytest.mark.parametrize("leaves", ["the caller", "the gateway"])
def test_letters_are_read_as_long_as_somebody_waits_for_them(leaves: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may have millions, and each page that is opened again would read all of them beside the others."""
    begun, over, ended = threading.Event(), threading.Event(), threading.Event()

    def endless(*_: object, **__: object) -> Iterator[DeadLetter]:
        try:
            for offset in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                yield letter(offset, 100)
                begun.set()
        finally:
            ended.set()

    monkeypatch.setattr(letters, "DeadLetterReader", endless)
    answers: list[Message] = []

    async def ask() -> None:
        gateway, gone = Gateway(Connection("127.0.0.1:1"), Settings(), Users()), asyncio.Event()

        async def receive() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(part: Message) -> None:
            answers.append(part)

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/letters/orders",
            "raw_path": b"/v1/letters/orders",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "client": None,
            "server": None,
            "http_version": "1.1",
            "scheme": "http",
            "root_path": "",
        }
        asked = asyncio.create_task(application(gateway)(scope, receive, send))
        await asyncio.to_thread(begun.wait, 20)
        (gone if leaves == "the caller" else gateway.stopping).set()
        try:
            await asyncio.wait_for(asked, 20)
            assert await asyncio.to_thread(ended.wait, 20)
        finally:
            over.set()

    asyncio.run(ask())
    assert answers[0]["status"] == 503

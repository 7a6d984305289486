"""Letters as the gateway counts and shows them: the latest ones, within a bound of memory (D2)."""

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from lapse.protocol.bookmark import Bookmark
from lapse_client import DeadLetter
from lapse_client.error import RedriveUnfinished
from lapse_client.letters.redrive import Choice
from lapse_client.letters.unfinished_redrive import UnfinishedRedrive
from lapse_gateway import letters
from lapse_gateway.letters import summary
from lapse_gateway.operation import Call


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


@pytest.mark.feature("C58", "D5")
def test_a_dry_run_beside_a_redrive_that_has_not_ended_is_refused_before_letters_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Unread(SimpleNamespace):
        def __iter__(self) -> NoReturn:
            pytest.fail("a letter was read")

    note = UnfinishedRedrive(letters="dlq.orders", audit="a", directory="/data/redriven", begun_at_ms=1_000)
    known = SimpleNamespace(redriven=SimpleNamespace(unfinished=lambda topic: [note] if topic == note.letters else []))
    reader = Unread(topic=note.letters, definitions=None)
    monkeypatch.setattr(letters, "DeadLetterReader", lambda *args, **more: reader)
    monkeypatch.setattr(letters, "Known", SimpleNamespace(of=lambda *args: known))
    monkeypatch.setattr(letters, "_now_ms", lambda *args: 2_000)

    async def while_waited(work: Any) -> object:
        return await work

    call = cast("Call", SimpleNamespace(gateway=SimpleNamespace(connection=None), while_waited=while_waited))
    with pytest.raises(RedriveUnfinished, match="/data/redriven began to send letters"):
        asyncio.run(letters.redrive(call, Choice(entity="orders"), dry_run=True))

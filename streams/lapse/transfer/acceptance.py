"""The last stage of a transfer: the queue there accepts the records that are confirmed here (Q17)."""

from __future__ import annotations

import time
from typing import Final

from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.command import Command
from lapse.transfer.copier import NotRead
from lapse.transfer.side import Side

UNREAD: Final = ("unknown", "advancing")
"""Results for messages that the shard has not read yet; `advancing` while it reads on to them (C85)."""

_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.02


def accept(there: Side, transfer: str, records: list[BookmarkRange], topic: str) -> None:
    """Make records visible. The shards there may still need to read them.

    Args:
        there: the side that takes over.
        transfer: the transfer's id.
        records: the records.
        topic: the topic that they are on.

    Raises:
        NotRead: they are not read in time.
        LapseError: a shard refused, or did not answer.
    """
    give_up, turn = time.monotonic() + _PATIENCE_S, 0
    while records:
        by_shard: dict[int, list[str]] = {}
        for one in records:
            shards = there.shards_of(one.partition)
            # Perhaps an older shard has read it, while the queue there had fewer shards (C81).
            by_shard.setdefault(shards[turn % len(shards)], []).append(str(one))
        answers = there.ask_each(
            {
                shard: Command(command="transfer_accept", transfer=transfer, bookmarks=tuple(texts))
                for shard, texts in by_shard.items()
            }
        )
        records = [
            BookmarkRange.parse(one.bookmarks)
            for answer in answers.values()
            for one in answer.settlements
            if one.result in UNREAD
        ]
        turn += 1
        if records and time.monotonic() > give_up:
            raise NotRead(
                f"queue {there.name} has not read {records[0]} for {_PATIENCE_S:.0f} s. Perhaps an "
                f"open transaction of another producer holds up the readers of {topic}, or the worker there is behind: "
                "see its log"
            )
        if records:
            time.sleep(_PAUSE_S)

"""The continuity of a running ledger: it goes on only over what it was begun over (D8)."""

from __future__ import annotations

from typing import Any

from lapse_spark.running.intake import Followed
from lapse_spark.running.memory import Note


def noted(queue: Followed) -> dict[str, Any]:
    """Return the fields of a note that say over what a ledger is kept."""
    starts = {f"{topic}:{partition}": offset for (topic, partition), offset in sorted(queue.starts.items())}
    return {"topics": sorted(queue.underlying), "starts": starts}


def check(queue: Followed, note: Note, path: str) -> None:
    """Check that a ledger can go on with a queue as it is named now. Further topics are read from their beginning.

    Args:
        queue: the queue.
        note: the note of the last batch.
        path: the ledger's directory.

    Raises:
        ValueError: a topic is missing, or the first message of a partition is another one.
    """
    known = note.topics or []
    anew = "or give a new directory with --state: it counts all messages anew"
    if gone := [topic for topic in known if not queue.reads(topic)]:
        named = ",".join([*queue.underlying, *gone])
        raise ValueError(
            f"{path} has the ledger of {queue.name} also over {', '.join(gone)}: the fates of those messages would be "
            f"read, and the messages not. Go on with --queue {queue.name} --topics {named}, {anew}"
        )
    starts = noted(queue)["starts"]
    for place in sorted({*starts, *(note.starts or {})}):
        was, now = (note.starts or {}).get(place), starts.get(place)
        if was != now and place.rpartition(":")[0] in known:
            raise ValueError(
                f"{path} has the ledger of {queue.name} {_begin(place, was)}, and now it is to be one "
                f"{_begin(place, now)}: messages between the two would be in one half of the account only. Go on as "
                f"before, {anew}"
            )


def _begin(place: str, offset: int | None) -> str:
    return f"from the beginning of {place}" if offset is None else f"with --start {place}:{offset}"

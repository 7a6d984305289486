"""Bookmarks: the names of messages, `topic:partition:offset`.

The bookmark of a message that a rewind brought back has its generation after the offset, `orders:0:17~1` (C61). Its
`offset` is then a position, which `lapse.core.generation` splits into offset and generation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from lapse.core.generation import (
    FIRST_REWOUND,
    MOST_GENERATIONS,
    format_position,
    generation_of,
    offset_of,
    position_of,
)

_FORM: Final = (
    r"(?P<topic>[A-Za-z0-9._-]{1,249}):(?P<partition>\d{1,10}):(?P<first>\d{1,19})"
    r"(?:-(?P<last>\d{1,19}))?(?:~(?P<generation>[1-9]\d{0,4}))?(?:#(?P<count>\d{1,10})(?:@(?P<epoch>\d{1,18}))?)?"
)
_RANGE: Final = re.compile(_FORM + r"\Z", re.ASCII)
_LINES: Final = re.compile(f"^{_FORM}$", re.ASCII | re.MULTILINE)

RangeFields: TypeAlias = tuple[str, int, int, int, int | None, int | None]
"""The fields of a `BookmarkRange`."""


class Bookmark(NamedTuple):
    """The name of a message. Bookmarks sort by topic, partition and offset.

    The offset is a position. For a message that a rewind brought back, `log_offset` is the offset of its record.
    """

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{format_position(self.offset)}"

    @property
    def log_offset(self) -> int:
        """The offset of its record in Kafka."""
        return offset_of(self.offset)

    @property
    def generation(self) -> int:
        """Number of the rewind of its partition that brought it back; 0 = none did (C61)."""
        return generation_of(self.offset)

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """Parse `topic:partition:offset[~generation]`.

        Raises:
            ValueError: the text is not a single bookmark.
        """
        found = BookmarkRange.parse(text)
        if found.first != found.last or found.delivery_count is not None:
            raise ValueError(f"bookmark {text!r}: expected one message, topic:partition:offset")
        return cls(found.topic, found.partition, found.first)

    @classmethod
    def parse_stated(cls, value: bytes | None) -> Bookmark | None:
        """Parse a header's value; None if it is not a bookmark."""
        try:
            return cls.parse((value or b"").decode())
        except ValueError:
            return None


def range_text(topic: str, partition: int, first: int, last: int) -> str:
    """Return the text of a range of positions, both ends included, without a fencing token."""
    if last == first:
        return f"{topic}:{partition}:{format_position(first)}"
    generation = f"~{generation_of(first)}" if first >= FIRST_REWOUND else ""
    return f"{topic}:{partition}:{offset_of(first)}-{offset_of(last)}{generation}"


@dataclass(frozen=True, slots=True)
class BookmarkRange:
    """Consecutive offsets of one partition, both ends included (Q8).

    Attributes:
        topic: the underlying topic.
        partition: the topic's partition.
        first: first offset, which is a position, as in `Bookmark`.
        last: last offset, `>= first`, of the same generation.
        delivery_count: fencing token, the delivery that is settled (C13); None = not stated.
        epoch: the epoch that made this delivery (C42); None = not stated.
    """

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int | None = None
    epoch: int | None = None

    def __str__(self) -> str:
        token = "" if self.delivery_count is None else f"#{self.delivery_count}"
        token += "" if self.epoch is None else f"@{self.epoch}"
        return range_text(self.topic, self.partition, self.first, self.last) + token

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[Bookmark]:
        return (Bookmark(self.topic, self.partition, offset) for offset in range(self.first, self.last + 1))

    @classmethod
    def parse(cls, text: str) -> BookmarkRange:
        """Parse `topic:partition:first[-last][~generation][#delivery_count[@epoch]]`.

        Raises:
            ValueError: the text has another form; the message shows the expected one.
        """
        match = _RANGE.match(text)
        if match is None:
            raise ValueError(
                f"bookmark {text!r}: expected topic:partition:offset or topic:partition:first-last, "
                "each with #delivery_count or #delivery_count@epoch if wanted"
            )
        first = int(match["first"])
        last = first if match["last"] is None else int(match["last"])
        if last < first:
            raise ValueError(f"bookmark {text!r}: the range ends before it begins")
        if last >= 1 << 63:
            raise ValueError(f"bookmark {text!r}: an offset has at most 63 bits")
        if match["generation"] is not None:
            if last >= FIRST_REWOUND or int(match["generation"]) > MOST_GENERATIONS:
                raise ValueError(f"bookmark {text!r}: no message has this generation, or this offset")
            first, last = (position_of(one, int(match["generation"])) for one in (first, last))
        last = min(last, position_of(FIRST_REWOUND - 1, generation_of(first)))  # no log has greater offsets
        count = None if match["count"] is None else int(match["count"])
        epoch = None if match["epoch"] is None else int(match["epoch"])
        return cls(match["topic"], int(match["partition"]), first, last, count, epoch)

    @classmethod
    def of_records(cls, text: str) -> BookmarkRange:
        """Parse `topic:partition:first[-last]`, for records of a SOW topic, without generation and delivery count.

        Raises:
            ValueError: the text has another form; the message shows the expected one.
        """
        match = _RANGE.match(text)
        if match is None or match["generation"] is not None or match["count"] is not None:
            raise ValueError(f"bookmark {text!r}: expected topic:partition:offset or topic:partition:first-last")
        return cls.parse(text)


def ranges(messages: Iterable[tuple[Bookmark, int | None]]) -> list[BookmarkRange]:
    """Join neighbouring messages with equal delivery counts into ranges, sorted by bookmark."""
    joined: list[BookmarkRange] = []
    for bookmark, count in sorted(messages, key=lambda item: item[0]):
        if joined:
            last = joined[-1]
            if (last.topic, last.partition, last.last + 1, last.delivery_count) == (*bookmark, count):
                joined[-1] = BookmarkRange(last.topic, last.partition, last.first, bookmark.offset, count)
                continue
        joined.append(BookmarkRange(bookmark.topic, bookmark.partition, bookmark.offset, bookmark.offset, count))
    return joined


def parse_ranges(texts: Sequence[str]) -> list[RangeFields]:
    """Parse ranges, as `BookmarkRange.parse` parses each, and return the fields of each. Many take a third of the time.

    Raises:
        ValueError: a text has another form; see `BookmarkRange.parse`.
    """
    lines = "\n".join(texts)
    found = _LINES.findall(lines)
    if len(found) == len(texts) == lines.count("\n") + 1:
        fields: list[RangeFields] = [
            (
                topic,
                int(partition),
                int(first),
                int(last or first),
                int(count) if count else None,
                int(epoch) if epoch else None,
            )
            for topic, partition, first, last, generation, count, epoch in found
            if not generation
        ]
        if len(fields) == len(texts) and all(one[2] <= one[3] < FIRST_REWOUND for one in fields):
            return fields
    ranges = [BookmarkRange.parse(text) for text in texts]
    return [(one.topic, one.partition, one.first, one.last, one.delivery_count, one.epoch) for one in ranges]


def runs(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last offset of each run. The list is sorted in place, and repeated offsets count once."""
    offsets.sort()
    first = last = offsets[0]
    if offsets[-1] - first == len(offsets) - 1 and len(set(offsets)) == len(offsets):
        yield first, offsets[-1]
        return
    for offset in offsets:
        if offset > last + 1:
            yield first, last
            first = offset
        last = offset
    yield first, last


BookmarkLike = str | Bookmark | BookmarkRange
"""A message, or a range of messages, in any form that the client takes."""

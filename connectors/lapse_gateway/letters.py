"""Dead letters over HTTP: they are counted, shown, and redriven, with another payload if wanted (D2, D5)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pydantic import Field, model_validator
from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse.core.expression import ExpressionError
from lapse.core.reason import Reason
from lapse.protocol.bookmark import Bookmark
from lapse_client import Connection, DeadLetter, DeadLetterReader
from lapse_client.kafka import time_check
from lapse_client.letters import unfinished_redrive
from lapse_client.letters.redrive import Choice, Known, Line, Target, plan, send
from lapse_gateway import payload
from lapse_gateway.fault import Fault
from lapse_gateway.operation import INSTANT, TEXT, WHOLE, Call, Operation, answered, listed, obj
from lapse_gateway.parameter import Parameter, filter_parameter
from lapse_gateway.payload import Content

logger = logging.getLogger(__name__)

MOST_SHOWN: Final = 10_000
MOST_SHOWN_BYTES: Final = 32 * 1024 * 1024
"""The most bytes of keys, values and headers that one answer has, except if its only letter has more."""
_LATEST_MS: Final = (1 << 53) - 1

T = TypeVar("T")
Payloads = Mapping[str, Callable[[bytes], object]]
"""By entity, what reads payloads that are not JSON."""


@dataclass(slots=True)
class Letters:
    """A summary of chosen dead letters.

    Attributes:
        count: number of letters.
        reasons: number of letters by reason.
        latest: the latest letters, the newest first.
        left_out: number of letters that are asked for, and missing in `latest` because of their size.
    """

    count: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    latest: list[DeadLetter] = field(default_factory=list)
    left_out: int = 0


@dataclass(slots=True)
class Redrive:
    """The result of a redrive or of its preview.

    Attributes:
        ready: number of letters that are sent.
        late: number of those whose deadline has passed. They get the queue's default lifetime.
        refused: number of letters that are not sent, by cause.
        topics: topics that they are sent to.
    """

    ready: int = 0
    late: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    topics: set[str] = field(default_factory=set)

    def noted(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines of a plan, and count them."""
        for line in lines:
            if line.refused:
                self.refused[line.refused] += 1
            else:
                self.ready += 1
                self.late += line.deadline_passed
                self.topics.add(line.topic)
            yield line


class Redriving(Content):
    """A redrive of chosen letters, or of one letter, possibly with another payload.

    Attributes:
        letter: bookmark of one letter on its dead-letter topic; without it, the other fields choose.
        since_ms: choose letters whose messages left at this instant or later, ms since the epoch.
        reasons: choose letters with any of these reasons; empty = all.
        filter: an expression. Only letters that match are chosen.
        again: whether to send letters that were sent before.
        overwrite: whether to send letters for whose key a SOW topic has a newer record.
        dry_run: whether to count only.
    """

    letter: str | None = None
    since_ms: int | None = Field(default=None, ge=0, le=_LATEST_MS)
    reasons: list[str] = Field(default_factory=list, max_length=len(Reason))
    filter: str | None = None
    again: bool = False
    overwrite: bool = False
    dry_run: bool = False

    @model_validator(mode="after")
    def _one_or_many(self) -> Redriving:
        if unknown := set(self.reasons) - {reason.value for reason in Reason}:
            raise ValueError(f"reasons: {min(unknown)[:40]!r} is none; known are {', '.join(Reason)}")
        if self.filter == "":
            raise ValueError("filter: is empty; leave it out, or send TRUE for everything")
        if len(self.contents) > 1:
            raise ValueError(f"say one of value, text, base64; {len(self.contents)} are given")
        if self.letter is None and self.contents:
            raise ValueError("a payload is for one letter; name it in the field letter")
        if self.letter is not None and (self.filter is not None or self.reasons or self.since_ms is not None):
            raise ValueError("name one letter, or choose by since_ms, reasons and filter, not both")
        return self

    def choice(self, entity: str, payloads: Payloads) -> Choice:
        """Return the choice among an entity's letters.

        Args:
            entity: name of the queue or SOW topic.
            payloads: by entity, what reads payloads that are not JSON.
        """
        return Choice(
            entity=entity,
            reasons=frozenset(self.reasons),
            since_ms=self.since_ms,
            filter=self.filter or "",
            again=self.again,
            overwrite=self.overwrite,
            payloads=payloads,
        )


def allowed(call: Call, *, sends: bool) -> str:
    """Return the requested entity, if the caller may see its letters, and with `sends` redrive them.

    Raises:
        Fault: the caller may not.
    """
    name = call.path["entity"]
    call.caller.check_whole(name, "the dead letters")
    if sends:
        call.caller.check_publish(name, frozenset({name}))
    return name


async def read(call: Call, choice: Choice, most: int) -> Letters:
    """Count the chosen letters, and return the latest ones. Stop reading when nobody waits for them any more.

    Args:
        call: the request.
        choice: the choice of letters. Its entity names the topic.
        most: greatest number of letters to return.

    Raises:
        Fault: the filter is not valid, or the gateway ends.
        LapseError: there is no dead-letter topic, or it cannot be read.
    """
    return await _while_waited(call, lambda left: _read(call.gateway.connection, choice, most, left))


async def one(call: Call, entity: str, place: str) -> DeadLetter:
    """Return one letter of an entity.

    Args:
        call: the request.
        entity: the queue or SOW topic that the message left.
        place: bookmark of the letter, `topic:partition:offset`.

    Raises:
        Fault: the letter belongs to another entity.
        LapseError: there is no such letter.
        ValueError: the bookmark is not valid.
    """
    at = Bookmark.parse(place.strip())
    letter = await _in_thread(lambda: DeadLetterReader(entity, connection=call.gateway.connection).at(at))
    if letter.entity != entity:
        raise Fault("unknown_entity", f"letter {at} is of {letter.entity or 'nobody'}, not of {entity}")
    return letter


async def redrive(
    call: Call, choice: Choice, *, letters: Sequence[DeadLetter] | None = None, dry_run: bool, **facts: Any
) -> Redrive:
    """Redrive letters and write an audit record, or count what a redrive would do.

    Args:
        call: the request.
        choice: the choice of letters. Its entity names the topic.
        letters: the letters to choose from, with their payloads; None = all letters of the topic.
        dry_run: whether to count only.
        facts: further facts for the audit record.

    Raises:
        Fault: the filter is not valid, or the gateway ends while it only counts.
        RedriveUnfinished: a redrive by Spark of the topic has not ended.
        LapseError: there is no dead-letter topic, or letters could not be sent.
    """
    found = Redrive()
    connection = call.gateway.connection
    if dry_run:
        return await _while_waited(call, lambda left: _redrive_letters(connection, choice, letters, found, left))
    with call.recording("redrive", choice.entity, **facts) as outcome:
        await _in_thread(lambda: _redrive_letters(connection, choice, letters, found))
        outcome.update(sent=found.ready, refused=dict(found.refused))
    return found


async def now_ms(call: Call, name: str) -> int:
    """Return the broker's time, ms since the epoch; measure it if necessary (C3)."""
    return await _in_thread(lambda: _now_ms(name, call.gateway.connection))


def _read(connection: Connection, choice: Choice, most: int, left: threading.Event) -> Letters:
    letters = DeadLetterReader(choice.entity, connection=connection, since_ms=choice.since_ms)
    wanted = itertools.takewhile(lambda _: not left.is_set(), letters)
    return summary(choice.of(wanted), most, MOST_SHOWN_BYTES)


def summary(letters: Iterable[DeadLetter], most: int, most_bytes: int) -> Letters:
    """Count letters, and keep the latest ones. No more than these are in memory at once.

    Args:
        letters: the letters, the oldest first.
        most: greatest number of letters to keep.
        most_bytes: greatest size of their keys, values and headers together. The latest letter is kept in any case.
    """
    found, latest, size_bytes = Letters(), deque[DeadLetter](), 0
    for letter in letters:
        found.count += 1
        found.reasons.update(letter.reasons)
        latest.append(letter)
        size_bytes += _size_bytes(letter)
        while len(latest) > most or (size_bytes > most_bytes and len(latest) > 1):
            size_bytes -= _size_bytes(latest.popleft())
    found.latest = list(reversed(latest))
    found.left_out = min(most, found.count) - len(latest)
    return found


def _size_bytes(letter: DeadLetter) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in letter.headers)
    return len(letter.key or b"") + len(letter.value or b"") + headers


def _redrive_letters(
    connection: Connection,
    choice: Choice,
    letters: Sequence[DeadLetter] | None,
    found: Redrive,
    left: threading.Event | None = None,
) -> Redrive:
    """Carry out a redrive, or only plan it until `left` is set. Count in `found` what becomes of the letters."""
    among = DeadLetterReader(choice.entity, connection=connection, since_ms=choice.since_ms)
    known = Known.of(connection, among.definitions)
    given: Iterable[DeadLetter] = among if letters is None else letters
    if left is not None:
        unfinished_redrive.refuse(known.redriven.unfinished(among.topic))  # first, since many letters take long
        given = itertools.takewhile(lambda _: not left.is_set(), given)
    lines = found.noted(plan(given, choice, Target(), _now_ms(choice.entity, connection), known))
    if left is None:
        send(lines, connection, letters=among.topic, redriven=known.redriven, copies=among.copies)
    else:
        deque(lines, maxlen=0)
    return found


def _now_ms(name: str, connection: Connection) -> int:
    return time_check.now_ms(connection, name, logger.warning)


async def _while_waited(call: Call, work: Callable[[threading.Event], T]) -> T:
    """Run work in a thread that is over soon after its event is set: when nobody waits for it any more."""
    left = threading.Event()
    try:
        return await call.while_waited(_in_thread(lambda: work(left)))
    finally:
        left.set()


async def _in_thread(work: Callable[[], T]) -> T:
    """Run work that waits for Kafka in a thread."""
    try:
        return await asyncio.to_thread(work)
    except ExpressionError as error:
        raise Fault(ErrorCode.INVALID_EXPRESSION, f"filter: {error}") from error


async def _letters(call: Call) -> Response:
    name, given = allowed(call, sends=False), call.parameters
    choice = Choice(
        entity=name,
        reasons=frozenset(given["reason"]),
        since_ms=given["since_ms"],
        filter=given["filter"] or "",
        payloads=call.gateway.settings.payloads,
    )
    found = await read(call, choice, given["top_n"])
    letters = [_letter_as_json(letter) for letter in found.latest]
    return answered(
        {"count": found.count, "reasons": dict(found.reasons), "letters": letters, "left_out": found.left_out}
    )


def _letter_as_json(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter for JSON."""
    return letter.facts() | payload.message_shown(letter.key, letter.headers, letter.value)


async def _redrive(call: Call) -> Response:
    name, wanted = allowed(call, sends=True), call.decoded(Redriving)
    letters = None
    if wanted.letter is not None:
        letter = await one(call, name, wanted.letter)
        letters = [letter.with_value(wanted.content()) if wanted.contents else letter]
    facts = wanted.model_dump(include={"letter", "since_ms", "reasons", "filter", "again", "overwrite"})
    found = await redrive(
        call,
        wanted.choice(name, call.gateway.settings.payloads),
        letters=letters,
        dry_run=wanted.dry_run,
        edited=bool(wanted.contents),
        **{field: value for field, value in facts.items() if value},
    )
    return answered({"sent": found.ready, "deadline_passed": found.late, "refused": dict(found.refused)})


OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/letters/{entity}",
        summary="Count an entity's dead letters by reason, and look at the last ones",
        description="From the topic, as `lapse dlq` does: it takes as long as that is large.",
        handler=_letters,
        parameters=(
            Parameter(
                name="since_ms",
                description="Died at this instant or later, ms since the epoch.",
                kind="whole",
                most=_LATEST_MS,
            ),
            Parameter(name="reason", description="Why; any of them.", kind="texts", choices=tuple(Reason)),
            filter_parameter("An expression; only letters that match."),
            Parameter(
                name="top_n",
                description="At most so many.",
                kind="whole",
                least=1,
                most=MOST_SHOWN,
                default=100,
            ),
        ),
        answer=obj(
            count=WHOLE,
            reasons={"type": "object"},
            left_out=WHOLE,
            letters=listed(
                obj(
                    letter=TEXT,
                    origin={"type": ["string", "null"]},
                    reasons=listed(TEXT),
                    message=TEXT,
                    expired_at_ms=INSTANT,
                    expires_at_ms=INSTANT,
                    delivery_count=WHOLE,
                    cancel_count=WHOLE,
                    redriven_count=WHOLE,
                    lapse_id=TEXT,
                    **payload.MESSAGE,
                )
            ),
        ),
    ),
    Operation(
        method="POST",
        path="/v1/letters/{entity}/redrive",
        summary="Send dead letters back",
        description=(
            "Those that are chosen, or one `letter`, with another payload (`value`, `text` or `base64`) where one is "
            "given. `dry_run` only counts. A letter is sent once, unless `again` says otherwise."
        ),
        handler=_redrive,
        model=Redriving,
        answer=obj(sent=WHOLE, deadline_passed=WHOLE, refused={"type": "object"}),
        changes=True,
    ),
)

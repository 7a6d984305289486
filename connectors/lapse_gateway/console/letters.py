"""Pages on dead letters: why messages left, what they carried, and the way back with a preview (D2, D5)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse.core.expression import ExpressionError
from lapse.core.reason import Reason
from lapse_client import Connection, DeadLetter, DeadLetterReader, time_check
from lapse_client.redrive import Choice, Known, Line, Target, plan, send
from lapse_gateway.console.page import rendered
from lapse_gateway.console.route import action, page, sent
from lapse_gateway.fault import Fault
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

logger = logging.getLogger(__name__)

_SHOWN: Final = 50
_SINCE_MS: Final = {"hour": 3_600_000, "day": 86_400_000, "week": 604_800_000, "all": None}


@dataclass(slots=True)
class Letters:
    """What is known of some dead letters.

    Attributes:
        count: how many there are.
        reasons: of each reason, how many bear it.
        latest: the last ones that were written, the newest first.
    """

    count: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    latest: list[DeadLetter] = field(default_factory=list)


@dataclass(slots=True)
class Redrive:
    """What a redrive does, or has done.

    Attributes:
        ready: letters that are sent.
        late: those among them whose deadline has passed: they get the queue's lifetime.
        refused: of each cause, how many are not sent.
    """

    ready: int = 0
    late: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def noted(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Pass lines on, and count them."""
        for line in lines:
            if line.refused:
                self.refused[line.refused] += 1
            else:
                self.ready += 1
                self.late += line.deadline_passed
            yield line


def _read(name: str, connection: Connection, choice: Choice) -> Letters:
    """Read letters; by a thread, for it waits for Kafka."""
    found, latest = Letters(), deque[DeadLetter](maxlen=_SHOWN)
    for letter in choice.of(DeadLetterReader(name, connection=connection, since_ms=choice.since_ms)):
        found.count += 1
        found.reasons.update(letter.reasons)
        latest.append(letter)
    found.latest = list(reversed(latest))
    return found


def _redriven(name: str, connection: Connection, choice: Choice, *, really: bool) -> Redrive:
    """Plan a redrive, and carry it out where that is meant; by a thread."""
    known = Known.of(connection)
    letters = DeadLetterReader(name, connection=connection, since_ms=choice.since_ms)
    found = Redrive()
    lines = found.noted(plan(letters, choice, Target(), _now_ms(name, connection), known))
    if really:
        send(lines, connection, redriven=known.redriven)
    else:
        deque(lines, maxlen=0)
    return found


def _now_ms(name: str, connection: Connection) -> int:
    """The broker's time, ms since the epoch (C3); by a thread, for it may have to be measured."""
    return time_check.now_ms(connection, name, logger.warning)


async def _choice(call: Call, name: str, given: Any) -> Choice:
    span_ms = _SINCE_MS[given["since"]]
    since_ms = None if span_ms is None else await _in_thread(_now_ms, name, call.gateway.connection) - span_ms
    return Choice(
        entity=name,
        reasons=frozenset({given["reason"]} if given["reason"] else ()),
        since_ms=since_ms,
        filter=given["filter"] or "",
        again=given["again"],
    )


def _allowed(call: Call, *, sends: bool) -> str:
    name = call.path["entity"]
    call.caller.check_whole(name, "the dead letters")
    if sends:
        call.caller.check_publish(name, frozenset({name}))
    return name


async def _letters(call: Call) -> Response:
    name, given = _allowed(call, sends=False), call.parameters
    choice = await _choice(call, name, given)
    found = await _in_thread(_read, name, call.gateway.connection, choice)
    return rendered(
        call,
        "letters.html",
        entity=name,
        given=given,
        letters=found,
        reasons=[reason.value for reason in Reason],
        spans=list(_SINCE_MS),
    )


async def _confirm(call: Call) -> Response:
    name, given = _allowed(call, sends=True), call.parameters
    choice = await _choice(call, name, given)
    found = await _in_thread(_redriven, name, call.gateway.connection, choice, really=False)
    return rendered(call, "confirm_redrive.html", entity=name, given=given, redrive=found)


async def _redrive(call: Call) -> Response:
    name = _allowed(call, sends=True)
    given = sent(call, _CHOICE)
    choice = await _choice(call, name, given)
    found = await _in_thread(_redriven, name, call.gateway.connection, choice, really=True)
    chosen = {field: given[field] for field in ("since", "reason", "filter", "again") if given[field]}
    call.record("redrive", name, **chosen, sent=found.ready, refused=dict(found.refused))
    return rendered(call, "done.html", done=f"{found.ready:,} letters are sent back.")


async def _in_thread(work: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return await asyncio.to_thread(work, *arguments, **named)
    except ExpressionError as error:
        raise Fault(ErrorCode.INVALID_EXPRESSION, f"filter: {error}") from error


_CHOICE: Final = (
    Parameter(name="since", says="Died since then.", choices=tuple(_SINCE_MS), default="day"),
    Parameter(name="reason", says="Why; all without it."),
    Parameter(name="filter", says="An expression; only letters that match."),
    Parameter(name="again", says="Letters that were sent before, too.", kind="flag", default=False),
)

OPERATIONS: Final = (
    page("/console/letters/{entity}", "Dead letters", _letters, *_CHOICE),
    page("/console/letters/{entity}/confirm", "What a redrive would do", _confirm, *_CHOICE, part=True),
    action("/console/letters/{entity}/redrive", "Send letters back", _redrive),
)

"""Pages on dead letters: reasons, payloads, and redrives with a preview (D2, D5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.responses import Response

from lapse.core.error_code import ErrorCode
from lapse.core.reason import Reason
from lapse.protocol import topic
from lapse_client import DeadLetter
from lapse_client.letters.redrive import Choice
from lapse_client.reading.count_text import count_text
from lapse_gateway.console.difference import difference
from lapse_gateway.console.page import rendered
from lapse_gateway.console.queues import combine_filters
from lapse_gateway.console.route import action, page, sent
from lapse_gateway.console.text import is_text
from lapse_gateway.console.watch import PATIENCE_S
from lapse_gateway.fault import Fault
from lapse_gateway.letters import allowed, now_ms, one, read, redrive
from lapse_gateway.operation import Call
from lapse_gateway.parameter import Parameter

_SHOWN: Final = 50

_SINCE_MS: Final = {"hour": 3_600_000, "day": 86_400_000, "week": 604_800_000, "all": None}


async def _choice(call: Call, name: str, given: Any) -> Choice:
    span_ms = _SINCE_MS[given["since"]]
    return Choice(
        entity=name,
        reasons=frozenset({given["reason"]} if given["reason"] else ()),
        since_ms=None if span_ms is None else await now_ms(call, name) - span_ms,
        filter=given["filter"] or "",
        again=given["again"],
        payloads=call.gateway.settings.payloads,
    )


async def _letters(call: Call) -> Response:
    """Return the page of dead letters. Another request reads the letters, because they may be many."""
    name, given = allowed(call, sends=False), call.parameters
    if given["filter"]:
        combine_filters(given["filter"], None)
    return rendered(
        call,
        "letters.html",
        entity=name,
        given=given,
        reasons=[reason.value for reason in Reason],
        spans=list(_SINCE_MS),
        kind=await _kind(call, name),
    )


async def _chosen_letters(call: Call) -> Response:
    """Return the part of the page with the chosen letters."""
    name, given = allowed(call, sends=False), call.parameters
    found, kind = await asyncio.gather(read(call, await _choice(call, name, given), _SHOWN), _kind(call, name))
    return rendered(call, "letters_found.html", entity=name, letters=found, kind=kind)


async def _kind(call: Call, name: str) -> str:
    """Return the kind of an entity in the paths of its pages; empty if it did not exist a moment ago."""
    topics = await call.gateway.entities.look(PATIENCE_S, recent=True)
    if topic.commands(name) not in topics:
        return ""
    return "sow" if topic.sow(name) in topics else "queues"


async def _confirm(call: Call) -> Response:
    name, given = allowed(call, sends=True), call.parameters
    found = await redrive(call, await _choice(call, name, given), dry_run=True)
    return rendered(call, "confirm_redrive.html", entity=name, given=given, redrive=found)


async def _redrive(call: Call) -> Response:
    name = allowed(call, sends=True)
    given = sent(call, _CHOICE)
    chosen = {field: given[field] for field in ("since", "reason", "filter", "again") if given[field]}
    found = await redrive(call, await _choice(call, name, given), dry_run=False, **chosen)
    return rendered(call, "done.html", outcome=f"{count_text(found.ready, 'letter')} sent back.")


async def _edit(call: Call) -> Response:
    """Return the form to edit a letter's payload."""
    name = allowed(call, sends=True)
    letter = await one(call, name, call.parameters["letter"])
    return rendered(
        call,
        "letter.html",
        entity=name,
        letter=letter,
        text=_text(letter),
        no_payload=letter.value is None,
        kind=await _kind(call, name),
    )


async def _confirm_edit(call: Call) -> Response:
    name, given, letter, edited = await _edited(call)
    found = await redrive(call, _one(name, given), letters=[edited], dry_run=True)
    lines = await asyncio.to_thread(difference, _text(letter), _text(edited))
    return rendered(
        call,
        "confirm_edit.html",
        entity=name,
        given=given,
        redrive=found,
        lines=lines,
        same=edited.value == letter.value,
        spoilt=_is_json(letter.value) and not _is_json(edited.value),
        other_ends=_line_ends(_text(letter)) != _line_ends(_text(edited)),
    )


async def _redrive_edited(call: Call) -> Response:
    name, given, letter, edited = await _edited(call)
    facts = {"letter": given["letter"], "edited": edited.value != letter.value, "again": given["again"]}
    found = await redrive(call, _one(name, given), letters=[edited], dry_run=False, **facts)
    causes = ", ".join(found.refused)
    return rendered(
        call, "done.html", outcome=f"Not sent: {causes}." if causes else f"Sent back to {', '.join(found.topics)}."
    )


async def _edited(call: Call) -> tuple[str, Mapping[str, Any], DeadLetter, DeadLetter]:
    """Return the entity, the form's fields, the letter, and the edited letter."""
    name = allowed(call, sends=True)
    given = sent(call, _EDIT)
    letter = await one(call, name, given["letter"])
    # A browser sends CRLF line ends. Restore those of the payload.
    text = given["payload"].replace("\r\n", "\n")
    if "\r\n" in _text(letter):
        text = text.replace("\n", "\r\n")
    # A form cannot tell no payload from an empty one. Without a payload a record deletes a key.
    return name, given, letter, letter.with_value(None if letter.value is None and not text else text.encode())


def _one(name: str, given: Mapping[str, Any]) -> Choice:
    return Choice(entity=name, again=given["again"])


def _text(letter: DeadLetter) -> str:
    """Return the payload of a letter as text.

    Raises:
        Fault: the payload is not text.
    """
    if letter.value and not is_text(letter.value):
        raise Fault(
            ErrorCode.INVALID_ARGUMENT,
            f"the payload of {letter.bookmark} is no UTF-8, or has a NUL in it, so no form can show it; "
            "send another one as base64: POST /v1/letters/…/redrive",
        )
    return (letter.value or b"").decode()


def _line_ends(text: str) -> set[str]:
    """Return the kinds of line ends in a text."""
    return set(re.findall("\r\n|\r|\n", text))


def _is_json(value: bytes | None) -> bool:
    try:
        orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return False
    return True


_CHOICE: Final = (
    Parameter(name="since", description="Died since then.", choices=tuple(_SINCE_MS), default="day"),
    Parameter(name="reason", description="Why; all without it.", choices=("", *Reason), default=""),
    Parameter(name="filter", description="An expression; only letters that match."),
    Parameter(name="again", description="Letters that were sent before, too.", kind="flag", default=False),
)
_LETTER: Final = Parameter(name="letter", description="Which one: topic:partition:offset.", required=True)
_EDIT: Final = (_LETTER, Parameter(name="payload", description="What it carries.", default=""), _CHOICE[3])

OPERATIONS: Final = (
    page("/console/letters/{entity}", "Dead letters", _letters, *_CHOICE),
    page("/console/letters/{entity}/found", "Those that are chosen", _chosen_letters, *_CHOICE, part=True),
    page("/console/letters/{entity}/confirm", "What a redrive would do", _confirm, *_CHOICE, part=True),
    action("/console/letters/{entity}/redrive", "Send letters back", _redrive),
    page("/console/letters/{entity}/edit", "A letter, to be changed", _edit, _LETTER),
    action("/console/letters/{entity}/edit/confirm", "What sending it would do", _confirm_edit),
    action("/console/letters/{entity}/edit/redrive", "Send it back", _redrive_edited),
)

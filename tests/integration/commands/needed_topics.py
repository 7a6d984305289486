"""Without which topics each command fails: the rows of test_missing_sources.py (C52, X7)."""

from collections.abc import Callable
from typing import Final, NamedTuple

from lapse.protocol import topic

KINDS: Final[dict[str, Callable[[str, str], str]]] = {
    "underlying": lambda entity, app_id: entity,
    "commands": lambda entity, app_id: topic.commands(entity),
    "deliveries": lambda entity, app_id: topic.deliveries(entity),
    "events": lambda entity, app_id: topic.events(entity),
    "letters": lambda entity, app_id: topic.dead_letters(entity),
    "changelog": lambda entity, app_id: topic.changelog(app_id, entity),
    "sow": lambda entity, app_id: topic.sow(entity),
}
"""The topics of an entity, by their name and the application id of its workers."""


class Row(NamedTuple):
    """A command and its needs.

    Attributes:
        needs: the kinds of topics without which it fails, each by itself.
        why_none: if there are none.
        told: what the error says of the topic, with the entity for `{}`; empty = its name.
        mend: the command that the error names.
    """

    needs: tuple[str, ...] = ()
    why_none: str = ""
    message: str = ""
    mend: str = "lapse apply"


_QUEUE: Final = Row(("commands", "deliveries", "events", "changelog"))
_SOW: Final = Row((*_QUEUE.needs, "sow"))
_LETTERS: Final = Row(("letters",))
_CREATES: Final = Row(why_none="it creates what is missing")
_LISTS: Final = Row(why_none="it lists all that is missing: the test below")
_NO_LETTERS: Final = Row(why_none="no topic is no letters; the tests of dead letters in Spark")

ROWS: Final = {
    "apply": _CREATES,
    "check": _LISTS,
    "definitions": Row(why_none="it reads the definitions only; test_definitions.py"),
    "demo": _CREATES,
    "dev": _CREATES,
    "dlq ls": _LETTERS,
    "dlq purge": _LETTERS,
    "dlq redrive": Row(("letters", "underlying")),
    "dlq show": _LETTERS,
    "doctor": _LISTS,
    "explain": Row(("underlying",)),
    "gateway": Row(why_none="it starts, and its health and pages name what is missing: test_gateway_process.py"),
    "publish": Row(("underlying",), mend="lapse worker"),  # which knows whether the queue has another target
    "queue ack": _QUEUE,
    "queue alter": _CREATES,
    "queue cancel": _QUEUE,
    "queue create": _CREATES,
    "queue delete": _QUEUE,
    "queue depth": _QUEUE,
    "queue expire": _QUEUE,
    "queue partitions": _QUEUE,
    "queue pause": _QUEUE,
    "queue peek": _QUEUE,
    "queue purge": _QUEUE,
    "queue resume": _QUEUE,
    "queue rewind": _QUEUE,
    "queue subscribe": _QUEUE,
    "queue subscriptions": _QUEUE,
    "replicate": Row(("sow",), message="there is no SOW topic '{}'"),
    "simulate": Row(("underlying", *_QUEUE.needs)),
    "sow alter": _CREATES,
    "sow create": _CREATES,
    "sow delete": _SOW,
    "sow delete-topic": _SOW,
    "sow follow": _SOW,
    "sow query": _SOW,
    "sow scheduled": _SOW,
    "sow subscriptions": _SOW,
    "sow withdraw": _SOW,
    "spark alerts": Row(("underlying",)),
    "spark archive": _NO_LETTERS,
    "spark ledger": Row(("events", "underlying")),
    "spark lives": Row(("events",)),
    "spark monitor": _NO_LETTERS,
    "spark redrive": Row(("underlying",)),
    "spark report": Row(why_none="it reads directories"),
    "spark state": Row(("changelog",)),
    "top": _QUEUE,
    "transfer": _QUEUE,
    "worker": Row(why_none="it serves the other entities: test_missing_topics.py"),
}
"""Every command that speaks to a cluster."""

_TRIES: Final = [
    (name, kind, row not in (_QUEUE, _SOW) or number % len(row.needs) == at)
    for number, (name, row) in enumerate(ROWS.items())
    for at, kind in enumerate(row.needs)
]

ALWAYS: Final = [(name, kind) for name, kind, always in _TRIES if always]
"""All needs but those of a client, of which each command is without another one."""

AT_LENGTH: Final = [(name, kind) for name, kind, always in _TRIES if not always]

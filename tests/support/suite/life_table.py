"""Writes the docs' page of the life table: the states of messages, and what triggers do to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lapse.core.queue.life.message_state import MEANINGS, State
from lapse.core.queue.life.table import ROWS, Row, Trigger

_HEAD = """# The life of a message

Each message of a queue is in one state at a time. Triggers move it to other states, only as the rows below say:
the shard runs on this table (`core/queue/life/table.py`). A change without a row is refused as an error in the code.

`python tests/life.py` prints this page. A test makes each row happen (`tests/unit/core/queue/test_life.py`).

## States

The meaning of a state is the same for all features. A message without a place is identified by its topic, partition
and offset. A held message expires only when there is room for it (C12).

| state | meaning | has a place | counts in the depth | its deadline takes it | fills a backlog | binds its group |
|---|---|---|---|---|---|---|
"""

_TRIGGERS = """
## Triggers

If a trigger has no row for a state, it *spares* messages in that state. The last column has the reason of a removal.
If there are other reasons as well, the letter names all of them, and it is written if the queue wants letters for one
of them. A message that leaves after its deadline gets the state *expired*, not *gone*. If two rows fit, the row with a
condition counts.
"""


def name_of(state: State) -> str:
    """Return the name of a state for people."""
    return state.name.lower().replace("_", " ")


def list_states(states: Iterable[State]) -> str:
    """List states for people."""
    names = [name_of(state) for state in sorted(states)]
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def states_taken(trigger: Trigger) -> dict[str, set[State]]:
    """Return the states that a trigger takes, by guard. The key is empty for states with no guard or several."""
    guards: dict[State, set[str]] = {}
    for row in ROWS:
        if row.trigger is trigger:
            guards.setdefault(row.state, set()).add(row.when.value if row.when else "")
    found: dict[str, set[State]] = {}
    for state, some in guards.items():
        found.setdefault(next(iter(some)) if len(some) == 1 else "", set()).add(state)
    return dict(sorted(found.items()))


def unchanged_states(trigger: Trigger) -> set[State]:
    """Return the states of existing messages that a trigger does not change."""
    there = {state for state, meaning in MEANINGS.items() if meaning.there or meaning.deferred}
    return there - set().union(*states_taken(trigger).values())


def in_words(trigger: Trigger) -> str:
    """Describe which states a trigger takes and which it spares."""
    parts = [
        f"{list_states(states)}{f' ({guard})' if guard else ''}" for guard, states in states_taken(trigger).items()
    ]
    left = unchanged_states(trigger)
    return f"*{trigger.value}* takes messages that are {'; '.join(parts)}" + (
        f". It spares those that are {list_states(left)}." if left else "."
    )


def _joined() -> Iterator[tuple[Row, list[State]]]:
    """Join rows that differ only in their states."""
    found: dict[tuple[object, ...], tuple[Row, list[State]]] = {}
    for row in ROWS:
        changes = "departure" if row.reason else row.changes
        found.setdefault((row.trigger, row.when, changes, *row[4:]), (row, []))[1].append(row.state)
    yield from found.values()


def page() -> str:
    """Write the page from the table."""
    lines = []
    for state, meaning in MEANINGS.items():
        facts = (meaning.place, meaning.counts, meaning.expires, meaning.fills, meaning.binds)
        lines.append(
            f"| {name_of(state)} | {meaning.description} | {' | '.join('yes' if fact else '' for fact in facts)} |"
        )
    lines += [_TRIGGERS.strip("\n").join(("\n", "\n"))]
    lines += [
        "| trigger | takes messages that are | if | their new state | change | event | reason |",
        "|---|---|---|---|---|---|---|",
    ]
    last = None
    for row, states in _joined():
        trigger = "" if row.trigger is last else row.trigger.value
        last = row.trigger
        kinds = {one.changes for one in ROWS if one[0] is row.trigger and one[2] is row.when and one.state in states}
        changes = " or ".join(", then ".join(kind.name.lower() for kind in one) or "none" for one in sorted(kinds))
        event, reason = (f"`{text}`" if text else "" for text in (row.emits, row.reason or ""))
        cells = (
            trigger,
            list_states(states),
            row.when.value if row.when else "",
            name_of(row.to),
            changes,
            event,
            reason,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return _HEAD + "\n".join(lines) + "\n"

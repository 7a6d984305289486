"""A slow model of one SOW shard: dictionaries, and a look at everything at every instant."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

FOREVER = (1 << 63) - 1


@dataclass
class Row:
    deadline: int
    stamp: int
    source: str
    offset: int
    doc: dict


@dataclass
class Planned:
    at: int
    deadline: int
    key: bytes
    source: str
    offset: int
    doc: dict | None
    delta: bool


def merged(old, new):
    if not isinstance(old, dict) or not isinstance(new, dict):
        return copy.deepcopy(new)
    result = copy.deepcopy(old)
    for name, value in new.items():
        result[name] = merged(old[name], value) if name in old else copy.deepcopy(value)
    return result


@dataclass
class Oracle:
    acts: bool
    default: int | None
    ceiling: bool = False
    rows: dict[bytes, Row] = field(default_factory=dict)
    planned: list[Planned] = field(default_factory=list)
    retained: dict[bytes, tuple[int, int, str, int, int]] = field(default_factory=dict)
    """Stamp, partition, topic, offset of what deleted the key, and until when that is remembered."""
    left: list[tuple[str, bytes, str]] = field(default_factory=list)
    """EventKind, key, reason: in order per key."""

    def deadline(self, start: int, ttl: int | None, absolute: int | None) -> int:
        cap = start + self.default if self.ceiling and self.default is not None else FOREVER
        if absolute is not None:
            return min(absolute, cap)
        if ttl is not None:
            return min(start + ttl if ttl else FOREVER, cap)
        return FOREVER if self.default is None else start + self.default

    # --- time ---

    def pass_time(self, now: int, key: bytes | None = None) -> None:
        """Everything, or everything of one key, that is due."""
        while True:
            due = []
            if self.acts:
                due += [(row.deadline, 0, "", 0, name) for name, row in self.rows.items() if key in (None, name)]
            for plan in self.planned:
                if key in (None, plan.key):
                    at = min(plan.at, plan.deadline) if self.acts else plan.at
                    due.append((at, 1, plan.source, plan.offset, plan))
            due = [item for item in due if item[0] <= now]
            if not due:
                break
            first = min(due, key=lambda item: item[:4])
            if first[1] == 0:
                del self.rows[first[4]]
                self.left.append(("expired", first[4], "time_limit"))
            else:
                self.carry_out(first[4])
        if key is None:
            self.retained = {name: tombstone for name, tombstone in self.retained.items() if tombstone[4] > now}

    def carry_out(self, plan: Planned) -> None:
        self.planned.remove(plan)
        if self.acts and plan.deadline <= plan.at:
            self.left.append(("expired", plan.key, "time_limit"))
            return
        row = self.rows.get(plan.key)
        late = self.is_retained(plan.key, plan.at, plan.source, plan.offset) if row is None else row.stamp > plan.at
        if late:
            self.left.append(("ignored", plan.key, ""))
            return
        self.put(plan.key, plan.doc, plan.delta, plan.deadline, plan.at, plan.source, plan.offset)

    def is_retained(self, key: bytes, stamp: int, source: str, offset: int) -> bool:
        tombstone = self.retained.get(key)
        topic, _, partition = source.partition(":")
        return tombstone is not None and tombstone[:4] >= (stamp, int(partition), topic, offset)

    def last_removal(self, used: int, idle: int) -> int:
        """When a topic that is used now, and by nobody after, is used last: removals put off its end (C50)."""
        for deadline in sorted(row.deadline for row in self.rows.values()) if self.acts else ():
            if deadline > used + idle:
                break
            used = deadline
        return used

    # --- updates ---

    def record(self, key, stamp, source, offset, doc, *, ttl=None, absolute=None, enqueue=None, delta=False) -> None:
        if enqueue is not None and enqueue > stamp:
            deadline = FOREVER if doc is None else self.deadline(enqueue, ttl, absolute)
            self.planned.append(Planned(enqueue, deadline, key, source, offset, doc, delta and doc is not None))
            self.left.append(("scheduled", key, ""))
            return
        deadline = FOREVER if doc is None else self.deadline(stamp, ttl, absolute)
        self.pass_time(stamp, key)
        row = self.rows.get(key)
        if row is not None and row.source != source:
            mine, theirs = (
                (s, int(src.partition(":")[2]), src.partition(":")[0], o)
                for s, src, o in ((stamp, source, offset), (row.stamp, row.source, row.offset))
            )
            if theirs >= mine:
                self.left.append(("ignored", key, ""))
                return
        if row is None and self.is_retained(key, stamp, source, offset):
            self.left.append(("ignored", key, ""))
            return
        self.put(key, doc, delta, deadline, stamp, source, offset)

    def put(self, key, doc, delta, deadline, stamp, source, offset) -> None:
        row = self.rows.get(key)
        if doc is None:
            if row is not None:
                del self.rows[key]
                self.left.append(("deleted", key, ""))
            return
        if delta and row is not None:
            doc = merged(row.doc, doc)
        if self.acts and deadline <= stamp:
            self.rows.pop(key, None)
            self.left.append(("expired", key, "time_limit"))
            return
        self.retained.pop(key, None)
        self.rows[key] = Row(deadline, stamp, source, offset, copy.deepcopy(doc))

    def delete(self, keys, at: int, tombstone_ms: int) -> int:
        self.pass_time(at)
        removed = 0
        for key in keys:
            row = self.rows.get(key)
            known = self.retained.get(key)
            later = known is not None and known[2] == "" and known[0] > at  # an earlier delete by a later command
            if not later and (row is None or row.stamp <= at):
                self.retained[key] = (at, -1, "", -1, at + tombstone_ms)
            if row is not None and row.stamp <= at:
                del self.rows[key]
                self.left.append(("deleted", key, ""))
                removed += 1
        return removed

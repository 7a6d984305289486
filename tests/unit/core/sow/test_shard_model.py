"""Random lives of a shard against the oracle: same records, same events, and a subscriber's picture stays true.

`LAPSE_SOAK=5000 pytest tests/unit/core/sow/test_shard_model.py` lives through that many.
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from lapse.core.lifetime import NEVER
from lapse.core.reason import Reason
from lapse.core.sow.records.record import facts_of, payload_of, published_ms
from lapse.core.sow.step import Kind, Step
from support.suite.at_length import examples
from unit.core.sow.make import Desk, T, shard_of
from unit.core.sow.mirror import Mirror
from unit.core.sow.oracle import Oracle

KEYS = st.sampled_from([b"a", b"b", b"c"])
NUMBERS = st.integers(0, 3)
DOCS = st.dictionaries(
    st.sampled_from(["x", "y", "o"]),
    NUMBERS | st.none() | st.lists(NUMBERS, max_size=1) | st.dictionaries(st.sampled_from(["p", "q"]), NUMBERS),
)
SPANS = st.integers(0, 40)
FILTERS = st.sampled_from([None, "/x > 0", "/x = 1"])
TOMBSTONE_MS = 25
IDLE_MS = 20


def selects(text, doc):
    value = doc.get("x")
    return text is None or (type(value) is int and (value > 0 if text == "/x > 0" else value == 1))


class ShardHistory(RuleBasedStateMachine):
    queries = Bundle("queries")

    @initialize(
        enabled=st.booleans(),
        default=st.none() | st.integers(1, 30),
        model=st.sampled_from(["override", "ceiling"]),
        index=st.sampled_from([(), ("/x",)]),
    )
    def begin(self, enabled, default, model, index):
        self.now = 0
        self.model = model
        self.fixed = {"tombstone_ms": TOMBSTONE_MS, "batch_size": 1, "max_scan": 2, "hash_index": index}
        self.desk = Desk(shard_of(default, model, enabled=enabled, **self.fixed))
        self.oracle = Oracle(enabled, default, model == "ceiling")
        self.mirrors: dict[str, tuple[Mirror, str | None]] = {}
        self.gone: list[tuple[str, bytes, str]] = []
        self.asked: list[tuple] = []

    def note_effects(self, step: Step) -> Step:
        for event in step.events:
            if event.key is not None or event.bookmark is not None:
                reason = ",".join(event.reasons)
                # A refused record has no key of its own: it never was the record's.
                key = event.key if event.key is not None else b"?"
                self.gone.append((event.kind.value, key, reason))
        for message in step.deliveries:
            if message.subscription:
                self.mirrors[message.subscription][0].take(message)
        return step

    @rule(span=SPANS)
    def wait(self, span):
        self.now += span
        self.note_effects(self.desk.advance(self.now))
        self.oracle.pass_time(T + self.now)

    @rule(
        key=KEYS,
        doc=DOCS | st.none(),
        span=st.integers(0, 9),
        late=st.integers(0, 5),
        topic=st.sampled_from(["t", "u"]),
        delta=st.booleans(),
        ttl=st.none() | st.integers(0, 30),
        absolute=st.none() | st.integers(-5, 30),
        enqueue=st.none() | st.integers(-2, 30),
    )
    def record(self, key, doc, span, late, topic, delta, ttl, absolute, enqueue):
        self.now += span
        at = max(self.now - late, 0)
        headers: dict[str, object] = {}
        if ttl is not None and absolute is None:
            headers["lapse_ttl_ms"] = ttl
        else:
            ttl = None
        if absolute is not None:
            headers["lapse_expires_at_ms"] = T + at + absolute
        if enqueue is not None:
            headers["lapse_enqueue_at_ms"] = T + at + enqueue
        if delta:
            headers["lapse_command"] = "delta"
        offset = self.desk.offsets.get((topic, 0), 0)
        self.note_effects(self.desk.put(key, doc, at, topic=topic, **headers))
        self.oracle.record(
            key,
            T + at,
            f"{topic}:0",
            offset,
            doc,
            ttl=ttl,
            absolute=None if absolute is None else T + at + absolute,
            enqueue=None if enqueue is None else T + at + enqueue,
            delta=delta and doc is not None,
        )

    @rule(keys=st.lists(KEYS, min_size=1, max_size=3), back=st.integers(0, 4))
    def sow_delete(self, keys, back):
        at = max(self.now - back, 0)
        step = self.note_effects(self.desk.ask("sow_delete", at, keys=tuple(keys)))
        assert dict(step.answers[0].counts)["removed"] == self.oracle.delete(keys, T + at, TOMBSTONE_MS)

    @rule(name=st.sampled_from(["s1", "s2"]), text=FILTERS, deltas=st.booleans())
    def sow_and_subscribe(self, name, text, deltas):
        self.note_effects(self.desk.advance(self.now))
        self.mirrors[name] = (Mirror(), text)
        command = "sow_and_delta_subscribe" if deltas else "sow_and_subscribe"
        step = self.desk.ask(
            command, self.now, subscription=name, filter=text, batch_size=1, heartbeat_timeout_ms=10**9
        )
        self.oracle.pass_time(T + self.now)
        self.note_effects(step)
        self.pending = getattr(self, "pending", []) + step.queries

    @rule(name=st.sampled_from(["s1", "s2"]))
    def unsubscribe(self, name):
        known = name in self.desk.shard.state.subscribers
        step = self.desk.ask("unsubscribe", self.now, subscription=name)
        self.oracle.pass_time(T + self.now)
        self.note_effects(step)
        assert (step.answers[-1].error == "") == known
        self.mirrors.pop(name, None)

    @rule()
    def pull(self):
        for query in list(getattr(self, "pending", [])):
            if query.finished:
                self.pending.remove(query)
            elif (
                query.subscription in self.mirrors
                and self.desk.shard.state.subscribers[query.subscription].query is query
            ):
                self.note_effects(self.desk.pull(query, self.now))

    @rule(text=FILTERS, ordered=st.booleans(), top=st.none() | st.integers(0, 2), skip=st.integers(0, 1))
    def sow(self, text, ordered, top, skip):
        fields = {"filter": text, "skip": skip, "top_n": top, "order_by": "/x DESC" if ordered else None}
        step = self.note_effects(self.desk.ask("sow", self.now, **fields))
        self.oracle.pass_time(T + self.now)
        expected = [row.doc for row in self.oracle.rows.values() if selects(text, row.doc)]
        messages = self.desk.answer(step, self.now)
        found = [json.loads(message.payload) for message in messages if message.kind is Kind.SOW]
        size = max(len(expected) - skip, 0)
        assert len(found) == (size if top is None else min(top, size))
        for doc in found:
            assert doc in expected
        if ordered:
            numbers = [doc["x"] for doc in found if type(doc.get("x")) is int]
            assert numbers == sorted(numbers, reverse=True)
        if ordered and top is None and not skip:
            assert len(found) == len(expected)

    @rule(text=FILTERS, ordered=st.booleans())
    def ask(self, text, ordered):
        step = self.note_effects(
            self.desk.ask("sow", self.now, filter=text, order_by="/x" if ordered else None, batch_size=1)
        )
        self.oracle.pass_time(T + self.now)
        rows = {key: row for key, row in self.oracle.rows.items() if selects(text, row.doc)}
        self.asked.append((step.queries[0], {key: (row.doc, row.deadline) for key, row in rows.items()}, {}))

    @rule()
    def pull_asked(self):
        """A query shows what was there when it began, whatever came meanwhile, but for what has expired."""
        for query, expected, found in self.asked:
            if not query.finished:
                step = self.desk.pull(query, self.now)
                for message in step.deliveries:
                    if message.kind is Kind.SOW:
                        assert message.key not in found
                        found[message.key] = json.loads(message.payload)
                        assert message.deadline_ms > T + self.now or not self.oracle.acts
            if query.finished:
                assert all(expected[key][0] == doc for key, doc in found.items())
                for key in expected.keys() - found.keys():
                    assert self.oracle.acts
                    assert expected[key][1] <= T + self.now
        self.asked = [one for one in self.asked if not one[0].finished]

    @rule()
    def idle(self):
        """What would become of the topic if it were a temporary one that nobody uses from now on (Q18, C50).

        A shard that is restored from the journal is asked; the shard itself goes on.
        """
        self.note_effects(self.desk.advance(self.now))
        self.oracle.pass_time(T + self.now)
        desk, oracle = Desk(self.desk.shard), copy.deepcopy(self.oracle)
        desk.journal, desk.compacted = dict(self.desk.journal), dict(self.desk.compacted)
        desk.crash(self.now, replace(desk.shard.settings, idle_ms=IDLE_MS, configured="temporary"))
        protected = bool(desk.shard.state.subscribers or oracle.planned)
        assert (desk.shard.activity.idle_at_ms() == NEVER) == protected
        if protected:
            return
        at = oracle.last_removal(T + self.now, IDLE_MS) - T + IDLE_MS
        for deadline in sorted(row.deadline - T for row in oracle.rows.values()):
            if deadline < at:
                desk.advance(deadline)
        desk.advance(at - 1)
        assert desk.shard.state.retirement is None, "too early"
        step = Step()
        desk.shard.advance(T + at, step)
        while step.shard_messages:
            desk.shard.agreement.receive(step.shard_messages.pop(0), T + at, step)
        oracle.pass_time(T + at)
        there = set(oracle.rows)
        assert desk.shard.agreement.retired
        desk.shard.advance(T + at, step)
        desk.keep(step)
        gone = [one for one in step.events if one.key is not None]
        assert {one.key for one in gone if one.reasons == (Reason.AUTO_DELETED,)} == there
        assert desk.compacted == {}

    @rule(span=st.integers(0, 9), flip=st.booleans())
    def crash(self, span, flip):
        before = self.desk.shard.state
        self.now += span
        shard_settings = before.settings
        if flip:
            self.oracle.acts = not self.oracle.acts
            shard_settings = shard_of(self.oracle.default, self.model, enabled=self.oracle.acts, **self.fixed).settings
        step = self.desk.crash(self.now, shard_settings)
        after = self.desk.shard.state
        assert after.entries == before.entries
        assert dict(after.schedule) == dict(before.schedule)
        assert after.tombstones == before.tombstones
        assert after.sources == before.sources
        assert {name: s.subscription for name, s in after.subscribers.items()} == {
            name: s.subscription for name, s in before.subscribers.items()
        }
        for mirror, _ in self.mirrors.values():
            mirror.strict = False
        self.note_effects(step)
        self.pending = step.queries
        self.asked = []

    @invariant()
    def same_records(self):
        if not hasattr(self, "desk"):
            return
        entries = self.desk.shard.state.entries
        assert {name[1:] for name in entries} == set(self.oracle.rows)
        for name, entry in entries.items():
            row, facts = self.oracle.rows[name[1:]], facts_of(entry)
            assert (facts.deadline_ms, published_ms(entry, facts), facts.offset) == (
                row.deadline,
                row.stamp,
                row.offset,
            )
            assert json.loads(payload_of(entry)) == row.doc
        assert self.desk.compacted == {name[1:]: payload_of(entry) for name, entry in entries.items()}

    @invariant()
    def indexes_hold_what_is_there(self):
        if hasattr(self, "desk"):
            state = self.desk.shard.state
            by_key: dict[bytes, set[bytes]] = {}
            for journal_key, version in state.schedule:
                by_key.setdefault(version.key, set()).add(journal_key)
            assert state.schedule.by_key == by_key
            for value in range(4) if self.fixed["hash_index"] else ():
                found = {name[1:] for name in state.hash_index.find([("/x", value)])}
                assert found == {key for key, row in self.oracle.rows.items() if row.doc.get("x") == value}

    @invariant()
    def same_events(self):
        if hasattr(self, "desk"):
            for key in (b"a", b"b", b"c"):
                mine = [item for item in self.gone if item[1] == key]
                theirs = [item for item in self.oracle.left if item[1] == key]
                assert mine == theirs, (mine, theirs)

    @invariant()
    def true_pictures(self):
        if hasattr(self, "desk"):
            for mirror, text in self.mirrors.values():
                if mirror.complete:
                    rows = {key: row for key, row in self.oracle.rows.items() if selects(text, row.doc)}
                    assert all(key in rows and rows[key].doc == doc for key, doc in mirror.rows.items())
                    # What is due may not have been shown any more, though its removal is yet to come.
                    missing = rows.keys() - mirror.rows.keys()
                    assert all(self.oracle.acts and rows[key].deadline <= T + self.now for key in missing)

    @invariant()
    def next_due_is_not_late(self):
        if hasattr(self, "desk") and self.oracle.acts:
            deadlines = [row.deadline for row in self.oracle.rows.values() if row.deadline < 1 << 62]
            if deadlines:
                due = self.desk.shard.next_due_ms()
                assert due is not None
                assert min(deadlines) - 1024 < due <= min(deadlines) or due < min(deadlines)


TestShardHistory = ShardHistory.TestCase
TestShardHistory.settings = settings(
    max_examples=max(examples(600), int(os.environ.get("LAPSE_SOAK", "0"))),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestShardHistory.pytestmark = [
    pytest.mark.feature(
        "S2",
        "S3",
        "S4",
        "S5",
        "S6",
        "S7",
        "S8",
        "S9",
        "S11",
        "L5",
        "L9",
        "L10",
        "L11",
        "Q18",
        "C50",
        "C1",
        "C2",
        "C44",
        "C45",
        "C46",
        "C47",
    )
]

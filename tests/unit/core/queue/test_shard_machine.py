"""The shard does what the contract's naive reading does, whatever comes, and a crash at any moment changes nothing.

`LAPSE_SOAK=20000 pytest tests/unit/core/queue/test_shard_machine.py` runs that many examples.
"""

import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lapse.core.expression import compile_filter, compile_value
from lapse.core.generation import position_of
from lapse.core.lifetime import Expiration, ExpirationModel
from lapse.core.queue.arrival.trait import NO_TRAITS, TraitReader
from lapse.core.queue.delivery.retry import NO_RETRY, Cause, RetryRule
from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.settings import Fairness, Leasing, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.transfer.transfers import HandOver
from support.suite.at_length import QUICK
from unit.core.queue.compared.small_shard import small
from unit.core.queue.expected.message import FILTERS
from unit.core.queue.world import World

TRANSFERS = st.sampled_from(["tom", "to"])
HANDED_OVER = ["handed over", "handed over", "elsewhere handed over"]
NAMES = st.sampled_from(["inky", "blinky", "clyde"])
EARLIEST_MS = 600
TOPICS = st.sampled_from(["orders", "direct"])
WAITS = st.sampled_from([0, 1, 49, 50, 51, 99, 100, 101, 150, 400])
LIFETIMES = st.sampled_from([None, None, 0, 1, 50, 100, 150, 2**63 - 2])
INSTANTS = st.sampled_from([None, None, None, -500, 0, 1, 50, 100, 300])
ACTIONS = st.sampled_from(["acknowledge", "cancel", "expire", "renew"])
CLAIMS = st.lists(
    st.builds(
        lambda topic, first, length, token, epoch: Claim(topic, 0, first, first + length, token, epoch),
        st.sampled_from(["orders", "orders", "direct", "nowhere"]),
        st.builds(position_of, st.integers(0, 40), st.sampled_from([0, 0, 0, 1, 2])),
        st.sampled_from([0, 0, 1, 3, 12]),
        st.sampled_from([None, None, 0, 1, 2, 3]),
        st.sampled_from([None, None, 1, 3]),
    ),
    min_size=1,
    max_size=3,
)

EXPIRATIONS = st.builds(
    Expiration,
    st.sampled_from([True, True, True, False]),
    st.sampled_from([None, None, 100, 150]),
    st.sampled_from(ExpirationModel),
)


PRIORITY, BARRIER, GROUP = compile_value("/p"), compile_filter("/b = 'yes'"), compile_value("/g")
TRAITS = st.sampled_from([NO_TRAITS, NO_TRAITS]) | st.builds(
    TraitReader,
    st.sampled_from([None, PRIORITY]),
    st.sampled_from([None, BARRIER]),
    st.sampled_from([None, GROUP]),
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "p": st.sampled_from([None, 0, 1, 1, 2, 7.9, -1, "9", True, 2**63, 2**64 - 1, 2**64, 1e300]),
        "b": st.sampled_from(["yes", "no", "no"]),
        "g": st.sampled_from([None, "x", "y", 7, ["x"]]),
        "f": st.sampled_from([0, 1, 2]),
    },
)
RATES = st.sampled_from([None, None, None, Rate(1, 50), Rate(2, 100), Rate(3, 400), Rate(1, 100_000)])
"""The rates of deliveries that a queue, or its groups, may have (Q25)."""

TEXTS = st.sampled_from(["", "", *FILTERS])
YOUNGER = st.sampled_from([0, 0, 1, 2])
"""How many messages of each source are younger than a sweep, though they were read before it (C1)."""

RETRIES = st.just(NO_RETRY) | st.builds(
    RetryRule,
    st.sampled_from([0, 1, 40, 50, 120]),
    st.sampled_from([1.0, 1.5, 2.0]),
    st.sampled_from([120, 250, 10_000]),
    st.sampled_from([0.0, 0.2, 1.0]),
    st.sampled_from([frozenset(Cause), frozenset(Cause), frozenset({Cause.LEASE}), frozenset({Cause.CANCEL})]),
)
"""The rules of retries that a queue may have (Q24)."""


@st.composite
def queues(draw) -> QueueSettings:
    semantics = draw(st.sampled_from([Semantics.AT_LEAST_ONCE, Semantics.AT_LEAST_ONCE, Semantics.AT_MOST_ONCE]))
    once = semantics is Semantics.AT_MOST_ONCE
    traits = draw(TRAITS)
    limited = traits.priority is None and traits.barrier is None
    depth = draw(st.sampled_from([None, None, 1, 4])) if limited else None
    return QueueSettings(
        name="orders",
        traits=traits,
        target_depth=depth,
        semantics=semantics,
        fairness=Fairness.ROUND_ROBIN if once else draw(st.sampled_from(Fairness)),
        leasing=draw(st.sampled_from(Leasing)),
        expiration=draw(EXPIRATIONS),
        topic_expirations_ms=draw(st.sampled_from([{}, {"direct": 120}])),
        lease_ms=100,
        max_lease_ms=300,
        max_backlog=draw(st.sampled_from([None, None, 3])),
        max_deliveries=draw(st.sampled_from([0, 0, 1, 2, 3])),
        max_cancels=draw(st.sampled_from([0, 0, 1, 2])),
        retry=draw(RETRIES),
        group_limit=1 if depth else draw(st.sampled_from([1, 1, 2, 3])),
        rate=None if depth else draw(RATES),
        group_rate=None if depth or traits.group is None else draw(RATES),
        group_weights={} if depth else draw(st.sampled_from([{}, {"x": 3}, {"7": 2, "y": 5}])),
        dead_letter_topic=draw(st.sampled_from(["dlq.orders", ""])),
        dedup_window_ms=draw(st.sampled_from([0, 100, 100])),
    )


class ShardMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._small = small()
        self._small.__enter__()

    def teardown(self) -> None:
        self._small.__exit__(None, None, None)

    @initialize(
        queue=queues(),
        size=st.sampled_from([3, 5, 8]),
        ring=st.sampled_from([2, 4, 16]),
        patience=st.sampled_from([1, 1, 3, 12]),
        at_once=st.sampled_from([1, 3, 1_000]),
        room=st.sampled_from([None, 0, 0, 4_000]),
        filled=st.booleans(),
    )
    def begin(
        self, queue: QueueSettings, size: int, ring: int, patience: int, at_once: int, room: int | None, filled: bool
    ) -> None:
        self._small.__exit__(None, None, None)
        self._small = small(size, ring, at_once)
        self._small.__enter__()
        self.world = World(queue, room)
        self.patience = patience
        self.on_their_way: list[tuple[str, str, Claim]] = []
        if filled:
            for name, max_backlog in (("inky", 2), ("blinky", 4)):
                self.world.subscribe(name, max_backlog)
            for number in range(10):
                self.world.publish("orders", ttl_ms=(None, 150, 300)[number % 3])
            self.world.read("orders")
            self.world.deliver()

    @rule(
        topic=TOPICS,
        count=st.integers(1, 9),
        gap=st.sampled_from([0, 0, 0, 1, 4]),
        ttl_ms=LIFETIMES,
        expires_in_ms=INSTANTS,
        enqueue_in_ms=INSTANTS,
        odd=st.sampled_from(
            [
                "",
                "",
                "",
                "",
                "",
                "letter",
                "broken",
                "other queue",
                "this queue",
                "no timestamp",
                "ahead",
                "forged counts",
                *HANDED_OVER,
            ]
        ),
        ids=st.sampled_from(["", "", "a", "b", "ab"]),
        retry=st.sampled_from([None, None, b"0", b"60", b"9" * 15, b"soon"]),
        read=st.booleans(),
        bodies=st.lists(BODIES, min_size=1, max_size=4),
    )
    def publish(self, topic, count, gap, ttl_ms, expires_in_ms, enqueue_in_ms, odd, ids, retry, read, bodies) -> None:
        now_ms = self.world.now_ms
        if ttl_ms is not None:
            expires_in_ms = None
        for number in range(count):
            said = {
                "body": bodies[number % len(bodies)],
                "message_id": ids[number % len(ids)].encode() if ids else b"",
                "retry": None if number % 2 else retry,
                "ttl_ms": None if ttl_ms is None or number % 3 == 2 else ttl_ms,
                "expires_at_ms": None if expires_in_ms is None else now_ms + expires_in_ms + number % 2,
                "enqueue_at_ms": None if enqueue_in_ms is None or number % 4 == 3 else now_ms + enqueue_in_ms,
            }
            if odd == "no timestamp":
                said["timestamp"], said["message_id"] = -1, b""
            elif odd == "letter":
                said["letter"] = True
            elif odd == "ahead":
                said["timestamp"] = now_ms + 60
            elif odd == "broken" and number % 2:
                said["broken"] = True
            elif odd.endswith("handed over"):
                said["transferred"] = ("risk" if odd.startswith("elsewhere") else "orders", "tom"[: 3 - number % 2])
                said["counts"] = (number % 3, number % 2)
            elif odd == "forged counts":
                said["counts"] = (7, 7)  # no transfer brings them
            elif odd.endswith("queue"):
                said["redriven_for"] = "orders" if odd == "this queue" else "risk"
            self.world.publish(topic, gap if number == count // 2 else 0, **said)
        if read:
            self.world.read(topic)

    @rule(topic=TOPICS, most=st.sampled_from([1, 3, 50]), again=st.sampled_from([0, 0, 1, 6]))
    def read(self, topic, most, again) -> None:
        self.world.read(topic, most, again)

    @rule(
        name=NAMES,
        max_backlog=st.sampled_from([0, 1, 2, 4, 10]),
        timeout_ms=st.sampled_from([120, 100_000, 100_000]),
        text=TEXTS,
        payload=st.sampled_from(["inline", "packed", "reference"]),
    )
    def subscribe(self, name, max_backlog, timeout_ms, text, payload) -> None:
        self.world.subscribe(name, max_backlog, timeout_ms, text, payload)

    @rule(name=NAMES)
    def unsubscribe(self, name) -> None:
        self.world.unsubscribe(name)

    @rule(name=NAMES)
    def heard(self, name) -> None:
        self.world.heard(name)

    @rule()
    def deliver(self) -> None:
        self.world.deliver()

    @rule(which=st.lists(st.integers(0, 30), min_size=1, max_size=4), stale=st.sampled_from([0, 0, 0, 1]))
    def unsent(self, which, stale) -> None:
        """Kafka is so slow that deliveries are never sent; some settlements overtake the knowledge of it (C55)."""
        held = self.world.oracle.in_state("leased")
        late = {at % len(held): held[at % len(held)] for at in which} if held else {}
        self.world.unsent(*((m.holder, m.bookmark, m.deliveries - stale) for m in late.values()))

    @rule(wait_ms=WAITS, tick=st.booleans(), deliver=st.booleans())
    def wait(self, wait_ms, tick, deliver) -> None:
        if tick:
            self.world.advance(wait_ms)
        else:
            self.world.now_ms += wait_ms
        if deliver:
            self.world.deliver()

    @rule(leases=st.integers(1, 3))
    def hang(self, leases) -> None:
        """Consumers stand still and settle nothing, while their clients' heartbeats go on (C49)."""
        for _ in range(leases):
            for name in list(self.world.oracle.subscribers):
                self.world.heard(name)
            self.world.advance(self.world.settings.lease_ms)
            self.world.deliver()

    @rule()
    def idle(self) -> None:
        """A temporary queue that nobody uses any more (Q18)."""
        self.world.idle()

    @rule()
    def wait_for_rate(self) -> None:
        """Something that waits for a rate goes as soon as the window lets it, and not before."""
        frees_ms = self.world.oracle.frees_ms(self.world.now_ms)
        if frees_ms is not None and frees_ms < self.world.now_ms + 10_000:
            for wait_ms in (frees_ms - self.world.now_ms - 1, 1):
                self.world.advance(wait_ms)
                self.world.deliver()

    @precondition(lambda self: self.world.oracle.next_due_ms() is not None)
    @rule(early_ms=st.sampled_from([0, 0, 1]))
    def wait_for_timer(self, early_ms) -> None:
        due_ms = self.world.oracle.next_due_ms()
        if due_ms < self.world.now_ms + 10_000_000:
            self.world.advance(max(0, due_ms - early_ms - self.world.now_ms))

    @rule(
        action=ACTIONS,
        name=NAMES | st.just("stranger"),
        claims=CLAIMS,
        delay_ms=st.sampled_from([None, None, 0, 50, 2**63 - 1]),
    )
    def settle(self, action, name, claims, delay_ms) -> None:
        delay_ms = None if delay_ms is None else min(delay_ms, 2**63 - 1 - self.world.now_ms)
        self.world.settle(action, name, *claims, delay_ms=delay_ms if action == "cancel" else None)

    @rule(
        action=st.sampled_from(["acknowledge", "cancel", "expire", "renew"]),
        name=NAMES | st.just("stranger"),
        claims=CLAIMS,
        row_filter=st.sampled_from([text for text in FILTERS if text]),
    )
    def settle_filtered(self, action, name, claims, row_filter) -> None:
        """A user who may not see every message settles (X4)."""
        self.world.settle(action, name, *claims, row_filter=row_filter)

    @rule(
        action=ACTIONS,
        which=st.integers(0, 30),
        stale=st.booleans(),
        lease_ms=st.sampled_from([None, 1, 250, 10_000]),
        row_filter=TEXTS,
    )
    def settle_own(self, action, which, stale, lease_ms, row_filter="") -> None:
        """Settle what one holds, perhaps under an entitlement that does not cover it (X4)."""
        held = self.world.oracle.in_state("leased", "sent")
        if held:
            message = held[which % len(held)]
            topic, partition, offset = message.bookmark
            epoch = None if which % 3 == 0 else self.world.epoch - which % 2
            claim = Claim(topic, partition, offset, offset, message.deliveries - stale, epoch)
            renewed_ms = lease_ms if action == "renew" else None
            self.world.settle(action, message.holder, claim, lease_ms=renewed_ms, row_filter=row_filter)

    @rule(action=ACTIONS, which=st.integers(0, 30))
    def begin_to_settle(self, action, which) -> None:
        """A client writes a settlement, with what it knows then; when the shard reads it is another matter."""
        held = self.world.oracle.in_state("leased", "sent")
        if held:
            message = held[which % len(held)]
            topic, partition, offset = message.bookmark
            claim = Claim(topic, partition, offset, offset, message.deliveries)
            self.on_their_way.append((action, message.holder, claim))

    @precondition(lambda self: self.on_their_way)
    @rule(which=st.integers(0, 30), again=st.booleans())
    def settle_late(self, which, again) -> None:
        """Settlements come in any order, late, perhaps twice, and when another may have the lease."""
        at = which % len(self.on_their_way)
        self.world.settle(*(self.on_their_way[at] if again else self.on_their_way.pop(at)))

    @rule(by_ms=WAITS, followed=st.sampled_from([False, False, True]))
    def set_clock_back(self, by_ms, followed=False) -> None:
        """Another broker leads the partition, and its clock is behind; perhaps the shard follows it."""
        before_ms, self.world.now_ms = self.world.now_ms, max(EARLIEST_MS, self.world.now_ms - by_ms)
        self.world.did["wrong_clock"] += self.world.now_ms < before_ms
        if followed and not self.world.oracle.rates():
            self.world.set_back()

    @rule(topic=TOPICS)
    def acknowledge_all(self, topic) -> None:
        records = self.world.topics[topic, 0]
        if records:
            holder = next((m.holder for m in self.world.oracle.in_state("leased")), "stranger")
            self.world.settle("acknowledge", holder, Claim(topic, 0, 0, records[-1].offset))

    @rule(on=st.booleans())
    def pause(self, on) -> None:
        self.world.pause(on)

    @rule(leased=st.booleans(), really=st.sampled_from([False, False, True]), text=TEXTS, younger=YOUNGER)
    def purge(self, leased, really, text, younger) -> None:
        if really:
            self.world.purge(leased, text, younger)

    @rule(action=ACTIONS, name=NAMES | st.just("stranger"), text=TEXTS.filter(bool), younger=YOUNGER)
    def settle_by_filter(self, action, name, text, younger) -> None:
        self.world.settle_by_filter(action, name, text, younger)

    @rule(text=TEXTS, skip=st.integers(0, 7), limit=st.integers(0, 7))
    def peek(self, text, skip, limit) -> None:
        self.world.peek(text, skip, limit)

    @rule(which=st.lists(st.integers(0, 60), min_size=1, max_size=3))
    def truncate(self, which) -> None:
        known = [bookmark for bookmark in self.world.oracle.messages if bookmark[2] in which]
        self.world.truncate(*known)

    @rule(every=st.sampled_from([0, 1, 2, 3]))
    def refuse_letters(self, every) -> None:
        self.world.refusing = every

    @precondition(lambda self: self.world.oracle.pending)
    @rule(which=st.integers(0, 30))
    def letter_written(self, which) -> None:
        dying = list(self.world.oracle.pending)
        self.world.letter_written(dying[which % len(dying)])

    @rule(topic=TOPICS, begin_offset=st.integers(0, 30))
    def log_begins(self, topic, begin_offset) -> None:
        self.world.log_begins(topic, begin_offset)

    @rule(topic=TOPICS, crashes=st.lists(st.booleans(), max_size=3), really=st.sampled_from([False, True]))
    def replace(self, topic, crashes, really) -> None:
        if really:
            self.world.replace(topic, crashes)

    @rule(
        topics=st.lists(TOPICS, min_size=1, max_size=2, unique=True),
        first=st.sampled_from([0, 0, 3, 8]),
        kept=st.booleans(),
        handed_over=st.booleans(),
        dry_run=st.sampled_from([False, False, False, True]),
        text=TEXTS,
        part=st.sampled_from([1, 3, 1_000]),
        crashes=st.lists(st.booleans(), max_size=4),
    )
    def rewind(self, topics, first, kept, handed_over, dry_run, text, part, crashes) -> None:
        self.world.rewind(
            *topics,
            first=first,
            kept=kept,
            handed_over=handed_over,
            dry_run=dry_run,
            text=text,
            part=part,
            crashes=crashes,
        )

    @rule(force=st.booleans())
    def end(self, force) -> None:
        self.world.end(force)

    @rule(transfer=TRANSFERS, claims=CLAIMS, most=st.sampled_from([1, 3, 100, 100]))
    def hold(self, transfer, claims, most) -> None:
        self.world.hold(transfer, *claims, most=most)

    @rule(
        most=st.sampled_from([1, 3, 100]),
        least_life_ms=st.sampled_from([0, 0, 1, 60]),
        came=st.booleans(),
        holds=st.booleans(),
        text=TEXTS,
    )
    def spare(self, most, least_life_ms, came, holds, text) -> None:
        """Look for what nobody here takes, perhaps for a filter there, and perhaps hold it for elsewhere."""
        found = self.world.spare(most, least_life_ms, came, text)
        if holds and found:
            self.world.hold("to", *(Claim(*one, one[2]) for one in found))

    @rule(transfer=TRANSFERS, which=st.integers(0, 30), count=st.integers(1, 9))
    def confirm_own(self, transfer, which, count) -> None:
        """Confirm the first messages that a transfer holds, in runs of a length, some of them perhaps twice."""
        held = sorted(m.bookmark for m in self.world.oracle.mine(transfer, "transferring", "early"))
        given = [HandOver(*b, 1 + (which + at) % 2, "there", at % 2, 100 + at) for at, b in enumerate(held[:count])]
        apart = [one for at, one in enumerate(given) if not at or _end(given[at - 1]) <= (*one[:2], one.first)]
        self.world.confirm(transfer, *apart)

    @rule(transfer=TRANSFERS, claims=CLAIMS)
    def confirm(self, transfer, claims) -> None:
        claim = claims[0]
        self.world.confirm(transfer, HandOver(*claim[:3], claim.last - claim.first + 1, "there", 0, 0))

    @rule(transfer=TRANSFERS)
    def finish_transfer(self, transfer) -> None:
        self.world.finish_transfer(transfer)

    @rule(transfer=TRANSFERS)
    def hand_back(self, transfer) -> None:
        self.world.hand_back(transfer)

    @rule(transfer=TRANSFERS, claims=CLAIMS)
    def accept(self, transfer, claims) -> None:
        self.world.accept(transfer, *claims)

    @rule(transfer=TRANSFERS)
    def discard(self, transfer) -> None:
        self.world.discard(transfer)

    @rule()
    def commit(self) -> None:
        self.world.commit()

    @rule(
        torn=st.lists(st.integers(0, 50), max_size=2),
        stall=st.booleans(),
        expiration=st.none() | EXPIRATIONS,
        limits=st.none() | st.tuples(st.integers(0, 3), st.integers(0, 2)),
        backlog=st.sampled_from(["same", "same", None, 1, 3]),
        traits=st.none() | TRAITS,
        retry=st.none() | RETRIES,
        others=st.none() | queues(),
        commit=st.booleans(),
        compact=st.booleans(),
    )
    def crash(self, torn, stall, expiration, limits, backlog, traits, retry, others, commit, compact) -> None:
        queue = self.world.settings
        if others is not None:
            # The window stays, or is switched off and on: what a smaller one forgot, a larger one cannot know.
            queue = replace(others, dedup_window_ms=min(others.dedup_window_ms, 100))
        if expiration is not None:
            queue = replace(queue, expiration=expiration)
        if limits is not None:
            queue = replace(queue, max_deliveries=limits[0], max_cancels=limits[1])
        if retry is not None:
            queue = replace(queue, retry=retry)
        if backlog != "same":
            queue = replace(queue, max_backlog=backlog)
        if traits is not None and queue.target_depth is None:
            queue = replace(queue, traits=traits)
        # A longer window would begin with what the shorter one remembered.
        queue = replace(queue, rate=self.world.settings.rate, group_rate=self.world.settings.group_rate)
        if commit:
            self.world.commit()
        self.world.crash(queue, torn, stall, compact)

    @rule(by_ms=WAITS, leave_all=st.booleans())
    def zombie(self, by_ms, leave_all) -> None:
        self.world.zombie(by_ms, leave_all)

    @rule(tombstones_too=st.booleans())
    def compact(self, tombstones_too) -> None:
        self.world.compact(tombstones_too)

    @invariant()
    def sometimes_durable(self) -> None:
        world = getattr(self, "world", None)
        if world is not None and world.step is not None and len(world.step.changes) >= self.patience:
            world.commit()


def _end(one: HandOver) -> tuple[str, int, int]:
    return one.topic, one.partition, one.first + one.count


@pytest.mark.feature(
    "L5", "L6", "L7", "L8", "L9", "L10", "L12", "L14", "Q3", "Q5", "Q6", "Q7", "Q8", "Q9", "Q10", "Q21"
)
@pytest.mark.feature(
    "C2", "C5", "C6", "C9", "C10", "C13", "C14", "C15", "C16", "C17", "C18", "C19", "C20", "C21", "C22"
)
@pytest.mark.feature("C23", "C27", "C29", "D3", "C37", "Q16", "L1", "C12", "C31", "C32", "C34", "C40", "C42")
@pytest.mark.feature("Q11", "Q12", "Q13", "Q14", "Q15", "Q17", "Q20", "Q24", "C68", "C69")
def test_the_shard_is_the_oracle() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    lives = int(os.environ.get("LAPSE_SOAK", "12" if QUICK else "60"))
    run_state_machine_as_test(
        ShardMachine,
        settings=settings(
            max_examples=lives,
            stateful_step_count=50,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Every order of commands in a small world: two subscriptions, three messages, a crash after each and every step.

A breadth-first search over all reachable states. Each step starts from what the journal gives back, so whatever it
proves holds with a crash at any point; a step that a crash takes away altogether is the state before it.
Without `LAPSE_SOAK` it goes six commands deep; with it, until no new state is found.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.journal import QueueJournal, restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.core.queue.settlement import Claim, Result, Verb
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from unit.core.queue.world import dump, published, rows, small

START_MS, LEASE_MS, TTL_MS, TICK_MS, TICKS = 1_000, 100, 150, 100, 2
BACKLOGS = {"inky": 1, "blinky": 2}
LIFETIMES_MS = (None, TTL_MS, None)
SOAK = "LAPSE_SOAK" in os.environ
SETTLEMENTS = (Verb.ACKNOWLEDGE, Verb.CANCEL, Verb.EXPIRE)


class Told(NamedTuple):
    """What the world outside was told of one message."""

    tokens: tuple[tuple[str, int], ...] = ()
    leased_until_ms: int = 0
    cancels: int = 0
    fate: str = ""


class Node(NamedTuple):
    now_ms: int
    told: tuple[Told, ...]
    known: bytes
    left: bool


def commands(node: Node) -> Iterator[tuple]:
    yield ("deliver",)
    if node.now_ms < START_MS + TICK_MS * TICKS:
        yield ("tick",)
    if not node.left:
        yield ("leave",)
    for offset, told in enumerate(node.told):
        for subscription, token in told.tokens:
            for verb in SETTLEMENTS:
                yield (verb, offset, subscription, token)


class Search:
    def __init__(self, leasing: Leasing) -> None:
        self.settings = QueueSettings(
            name="orders",
            leasing=leasing,
            expiration=Expiration(enabled=True),
            lease_ms=LEASE_MS,
            max_deliveries=2,
            max_cancels=1,
        )

    def first(self) -> tuple[Node, dict[bytes, bytes]]:
        shard = QueueShard(self.settings)
        journal = QueueJournal(shard.state, 1)
        log = written({}, journal.begin())
        step = Step()
        for name, backlog in BACKLOGS.items():
            shard.subscribe(name, "", backlog, 1 << 40, "", START_MS, step)
        records = [published(at, timestamp=START_MS, ttl_ms=ttl_ms) for at, ttl_ms in enumerate(LIFETIMES_MS)]
        shard.arrive("orders", 0, records, step)
        log = written(log, journal.encode(step))
        return Node(START_MS, (Told(),) * len(records), dump(shard.state), False), log

    def follow(self, node: Node, log: dict[bytes, bytes], command: tuple) -> tuple[Node, dict[bytes, bytes]]:
        restored = restore(log.items())
        shard = QueueShard(self.settings, restored.state)
        journal = QueueJournal(shard.state, 1, restored)
        log = written(log, journal.maintain())
        step = Step()
        now_ms, told, left = node.now_ms, list(node.told), node.left
        match command:
            case ("deliver",):
                shard.deliver(now_ms, step)
            case ("tick",):
                now_ms += TICK_MS
                shard.advance(now_ms, step)
            case ("leave",):
                left = shard.unsubscribe("blinky", now_ms, step)
                told = [one._replace(leased_until_ms=0) if held(one, "blinky") else one for one in told]
            case (verb, offset, subscription, token):
                told[offset] = self.settle(shard, step, node, verb, offset, subscription, token)
        self.hear(step, told, now_ms)
        for name, subscriber in shard.state.subscriptions.items():
            assert 0 <= subscriber.outstanding <= BACKLOGS[name], "I6"
        live = shard.depth()["depth"]
        assert live == sum(not one.fate for one in told), "I1: a message is lost, or is there twice"
        known = dump(shard.state)
        if not step.changes:
            assert known == node.known, "nothing was journaled, and something changed"
            return Node(now_ms, tuple(told), known, left), log
        log = written(log, journal.encode(step))
        assert dump(restore(log.items()).state) == known, "I15: a crash changes the state"
        return Node(now_ms, tuple(told), known, left), log

    def settle(
        self, shard: QueueShard, step: Step, node: Node, verb: Verb, offset: int, subscription: str, token: int
    ) -> Told:
        (outcome,) = shard.settle(verb, subscription, [Claim("orders", 0, offset, offset, token)], node.now_ms, step)
        one = node.told[offset]
        current = bool(one.tokens) and one.tokens[-1] == (subscription, token) and one.leased_until_ms > 0
        if outcome.result is not Result.SETTLED:
            assert dump(shard.state) == node.known, "a refused settlement changes nothing"
            assert one.fate or not current, "a holder's settlement is refused"
            return one
        assert not one.fate, "I1: settled twice"
        if verb is not Verb.ACKNOWLEDGE:
            assert token == one.tokens[-1][1], "I4: an old token did something"
        if self.settings.leasing is Leasing.STRICT:
            assert current, "strict: settled by another than the holder"
        if verb is Verb.ACKNOWLEDGE:
            return one._replace(fate="acknowledged", leased_until_ms=0)
        return one._replace(leased_until_ms=0, cancels=one.cancels + (verb is Verb.CANCEL))

    def hear(self, step: Step, told: list[Told], now_ms: int) -> None:
        for removal in step.removals:
            for (_, _, offset), deadline_ms, deliveries, cancels in rows(removal.messages):
                one = told[offset]
                assert not one.fate, "I1: left twice"
                assert one.leased_until_ms <= now_ms, "Q10: left under a lease"
                reasons = set(map(str, removal.reasons))
                assert ("time_limit" in reasons) == (deadline_ms is not None and deadline_ms <= now_ms)
                if "forced_expire" not in reasons:
                    assert ("max_deliveries" in reasons) == (deliveries == 2 and len(one.tokens) == 2), "I5"
                    assert ("max_cancels" in reasons) == (cancels == 2 and one.cancels == 2), "I5"
                told[offset] = one._replace(fate="removed", leased_until_ms=0)
        for delivery in step.deliveries:
            for (_, _, offset), deadline_ms, deliveries, _ in rows(delivery.messages):
                one = told[offset]
                assert not one.fate, "I1: delivered after it left"
                assert deadline_ms is None or now_ms < deadline_ms, "I2"
                assert one.leased_until_ms <= now_ms, "I3"
                assert deliveries == len(one.tokens) + 1 <= 2, "I4, I5"
                told[offset] = one._replace(
                    tokens=(*one.tokens, (delivery.subscription, deliveries)), leased_until_ms=delivery.until_ms
                )
        for happening in step.happenings:
            if happening.kind == "lease_returned":
                for (_, _, offset), *_ in rows(happening.messages):
                    told[offset] = told[offset]._replace(leased_until_ms=0)


def held(one: Told, subscription: str) -> bool:
    return bool(one.tokens) and one.tokens[-1][0] == subscription


def written(log: dict[bytes, bytes], items: list) -> dict[bytes, bytes]:
    log = dict(log)
    for key, value in items:
        log.pop(key, None)
        if value is not None:
            log[key] = value
    return log


@pytest.mark.feature("Q5", "Q8", "Q9", "Q10", "Q16", "L10", "C13", "C22")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("leasing", Leasing)
def test_no_order_of_commands_breaks_an_invariant(leasing: Leasing) -> None:
    with small(size=2, ring=2):
        search = Search(leasing)
        node, log = search.first()
        seen, edge, depth = {node}, [(node, log)], 0
        while edge and (SOAK or depth < 6):
            depth += 1
            following = []
            for node, log in edge:
                for command in commands(node):
                    after, log_after = search.follow(node, log, command)
                    if after not in seen:
                        seen.add(after)
                        following.append((after, log_after))
            edge = following
    print(len(seen), "states")
    assert len(seen) > 500

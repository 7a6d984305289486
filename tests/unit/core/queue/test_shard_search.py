"""Every order of commands in a small world: two subscriptions, three messages, a crash after each and every step.

A breadth-first search over all reachable states, to its end. Each change is made to what the journal gives back, so
whatever this proves holds with a crash at any point; a step that a crash takes away altogether is the state before it.
With `LAPSE_SOAK` the world is larger: leases are renewed, messages cancelled with a delay, and time goes on for longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.core.queue.settlement.settlement import Claim, Result, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from unit.core.queue.compared.dump import dump
from unit.core.queue.compared.shown import rows
from unit.core.queue.compared.small_shard import small
from unit.core.queue.compared.written import published

PAGE = Path(__file__).parents[4] / "docs" / "testing.md"
SOAK = "LAPSE_SOAK" in os.environ
START_MS, LEASE_MS, TTL_MS, TICK_MS, TICKS = 1_000, 100, 150, 100, 3 if SOAK else 2
BACKLOGS = {"inky": 1, "blinky": 2}
LIFETIMES_MS = (None, TTL_MS, None)
SETTLEMENTS = ("acknowledge", "cancel", "expire", *(("delay", "renew") if SOAK else ()))


class ClientView(NamedTuple):
    """What clients know of one message, as far as it still matters."""

    deliveries: int = 0
    holder: str = ""
    leased_until_ms: int = 0
    cancels: int = 0
    fate: str = ""

    def back(self, cancels: int = 0) -> ClientView:
        return self._replace(holder="", leased_until_ms=0, cancels=self.cancels + cancels)


class Node(NamedTuple):
    now_ms: int
    views: tuple[ClientView, ...]
    known: bytes
    left: bool


Log = dict[bytes, bytes]


def commands(node: Node) -> Iterator[tuple]:
    yield ("deliver",)
    if node.now_ms < START_MS + TICK_MS * TICKS:
        yield ("tick",)
    if not node.left:
        yield ("leave",)
    for offset, view in enumerate(node.views):
        # Under each token that was ever given out, by either subscription; of what is gone, under one.
        for token in range(1, view.deliveries + 1):
            for subscription in BACKLOGS:
                for action in SETTLEMENTS:
                    yield (action, offset, subscription, token)


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
        # Two leases at a time exist with two messages, too. With three there are ten times as many states.
        self._lifetimes_ms = LIFETIMES_MS if SOAK or leasing is Leasing.STRICT else LIFETIMES_MS[:2]
        self._given_back: dict[tuple[tuple[bytes, bytes], ...], bytes] = {}

    def given_back(self, log: Log) -> bytes:
        """The state that a crash leaves; many changes come to the same log."""
        whole = tuple(log.items())
        if whole not in self._given_back:
            self._given_back[whole] = dump(restore(whole).state)
        return self._given_back[whole]

    def first(self) -> tuple[Node, Log]:
        shard = QueueShard(self.settings)
        journal = QueueJournal(shard.state, 1)
        log = written({}, journal.begin())
        step = Step()
        for name, backlog in BACKLOGS.items():
            shard.subscribing.subscribe(name, "", backlog, 1 << 40, "", START_MS, step)
        records = [published(at, timestamp=START_MS, ttl_ms=ttl_ms) for at, ttl_ms in enumerate(self._lifetimes_ms)]
        shard.arrive("orders", 0, records, step)
        log = written(log, journal.encode(step))
        return Node(START_MS, (ClientView(),) * len(records), dump(shard.state), False), log

    def all_nodes(self) -> set[Node]:
        node, log = self.first()
        seen, edge, depth = {node}, [(node, log)], 0
        while edge:
            following = []
            depth += 1
            epoch = 1 + depth // 2
            for node, log in edge:
                # Before each second step, another owner takes the shard over.
                log = log if depth % 2 else self.taken_over(node, log, epoch)
                for after, log_after in self.follow(node, log, epoch):
                    if after not in seen:
                        seen.add(after)
                        following.append((after, log_after))
            edge = following
        return seen

    def taken_over(self, node: Node, log: Log, epoch: int) -> Log:
        restored = restore(log.items())
        journal = QueueJournal(restored.state, epoch, restored)
        log = written(log, journal.begin())
        shard, step = QueueShard(self.settings, restored.state), Step()
        shard.take_over(node.now_ms, step)
        assert not step.changes
        assert dump(shard.state) == node.known, "a take-over changes the state"
        return log

    def follow(self, node: Node, log: Log, epoch: int) -> Iterator[tuple[Node, Log]]:
        """What each command makes of a state; after a change, the next one begins with what the journal gives back."""
        shard = journal = None
        for command in commands(node):
            if shard is None:
                restored = restore(log.items())
                shard = QueueShard(self.settings, restored.state)
                journal = QueueJournal(shard.state, epoch, restored)
                log_before = written(log, journal.maintain())
            step = Step()
            after = self.carry_out(shard, step, node, command)
            if step.changes:
                log_after = written(log_before, journal.encode(step))
                assert self.given_back(log_after) == after.known, "I15: a crash changes the state"
                yield after, log_after
                shard = None
            else:
                assert after.known == node.known, "nothing was journaled, and something changed"
                yield after, log_before

    def carry_out(self, shard: QueueShard, step: Step, node: Node, command: tuple) -> Node:
        now_ms, views, left = node.now_ms, list(node.views), node.left
        match command:
            case ("deliver",):
                shard.deliver(now_ms, step)
            case ("tick",):
                now_ms += TICK_MS
                shard.advance(now_ms, step)
            case ("leave",):
                left = shard.unsubscribe("blinky", now_ms, step)
                views = [one.back() if one.holder == "blinky" else one for one in views]
            case (action, offset, subscription, token):
                views[offset] = self.settle(shard, step, node, action, offset, subscription, token)
        self.hear(step, views, now_ms)
        for name, subscriber in shard.state.subscriptions.items():
            assert 0 <= subscriber.outstanding <= BACKLOGS[name], "I6"
        live = shard.depth()["depth"]
        assert live == sum(not one.fate for one in views), "I1: a message is lost, or is there twice"
        return Node(now_ms, tuple(views), dump(shard.state), left)

    def settle(
        self, shard: QueueShard, step: Step, node: Node, asked: str, offset: int, subscription: str, token: int
    ) -> ClientView:
        action = "cancel" if asked == "delay" else asked
        claim = Claim("orders", 0, offset, offset, token)
        if action == "renew":
            ((outcome,), until_ms) = shard.renew(subscription, [claim], node.now_ms, step)
        else:
            until_ms, delay_ms = 0, TICK_MS if asked == "delay" else 0
            (outcome,) = shard.settle(SettleAction(action), subscription, [claim], node.now_ms, step, delay_ms)
        one = node.views[offset]
        current = (one.holder, one.deliveries) == (subscription, token)
        if outcome.result is not Result.SETTLED:
            assert not step.changes, "a refused settlement changes nothing"
            assert one.fate or not current, "a holder's settlement is refused"
            return one
        assert not one.fate, "I1: settled twice"
        if action != "acknowledge":
            assert token == one.deliveries, "I4: an old token did something"
        if self.settings.leasing is Leasing.STRICT or action == "renew":
            assert current, "settled by another than the holder"
        if action == "acknowledge":
            return ClientView(1, fate="acknowledged")
        return one._replace(leased_until_ms=until_ms) if action == "renew" else one.back(cancels=action == "cancel")

    def hear(self, step: Step, views: list[ClientView], now_ms: int) -> None:
        for removal in step.removals:
            for (_, _, offset), deadline_ms, deliveries, cancels in rows(removal.messages):
                one = views[offset]
                assert not one.fate, "I1: left twice"
                assert one.leased_until_ms <= now_ms, "Q10: left under a lease"
                reasons = set(map(str, removal.reasons))
                assert ("time_limit" in reasons) == (deadline_ms is not None and deadline_ms <= now_ms)
                if "forced_expire" not in reasons:
                    assert ("max_deliveries" in reasons) == (deliveries == one.deliveries == 2), "I5"
                    assert ("max_cancels" in reasons) == (cancels == one.cancels == 2), "I5"
                views[offset] = ClientView(1, fate="removed")
        for delivery in step.deliveries:
            for (_, _, offset), deadline_ms, deliveries, _ in rows(delivery.messages):
                one = views[offset]
                assert not one.fate, "I1: delivered after it left"
                assert deadline_ms is None or now_ms < deadline_ms, "I2"
                assert one.leased_until_ms <= now_ms, "I3"
                assert deliveries == one.deliveries + 1 <= 2, "I4, I5"
                views[offset] = ClientView(deliveries, delivery.subscription, delivery.until_ms, one.cancels)
        for event in step.events:
            if event.kind == "lease_returned":
                for (_, _, offset), *_ in rows(event.messages):
                    views[offset] = views[offset].back()


def written(log: dict[bytes, bytes], items: list) -> dict[bytes, bytes]:
    log = dict(log)
    for key, value in items:
        log.pop(key, None)
        if value is not None:
            log[key] = value
    return log


@pytest.mark.feature("Q5", "Q8", "Q9", "Q10", "Q16", "L10", "C13", "C22")
@pytest.mark.timeout(3_600)
@pytest.mark.slow
@pytest.mark.parametrize("leasing", [Leasing.STRICT, Leasing.SUBLET])
def test_no_order_of_commands_breaks_an_invariant(leasing: Leasing) -> None:
    with small(size=2, ring=2):
        found = Search(leasing).all_nodes()
    assert {node.now_ms for node in found} == {START_MS + TICK_MS * tick for tick in range(TICKS + 1)}
    assert {one.fate for node in found for one in node.views} == {"", "acknowledged", "removed"}
    text = " ".join(PAGE.read_text("utf-8").split())
    assert f"{len(found):,} states" in text, "docs/testing.md says how many states there are"

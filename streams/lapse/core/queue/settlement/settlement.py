"""Settlement: what becomes of each bookmark that a subscription settles (Q8, C13 to C18)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.life.message_state import FILLS, State, by_state
from lapse.core.queue.life.table import Trigger, route
from lapse.core.queue.segments.segment import Segment, Where
from lapse.core.queue.settings import Leasing


class SettleAction(StrEnum):
    """What a settlement asks for."""

    ACKNOWLEDGE = "acknowledge"
    CANCEL = "cancel"
    EXPIRE = "expire"
    RENEW = "renew"


class Result(StrEnum):
    """What a settlement did to a message (C16)."""

    SETTLED = "settled"
    ALREADY_SETTLED = "already_settled"
    NOT_LEASED = "not_leased"
    NOT_HOLDER = "not_holder"
    STALE = "stale"
    TIME_LIMIT = "time_limit"
    SCHEDULED = "scheduled"
    UNKNOWN = "unknown"
    TRANSFERRING = "transferring"
    LEASED = "leased"
    ADVANCING = "advancing"


class Claim(NamedTuple):
    """Messages that a settlement names: offsets of one source, both ends included, with the fencing tokens if sent.

    The tokens are the count of the delivery that is settled (C13), and the epoch that made it (C42). `found`
    says that it is what a filter found, or a part of a range.
    """

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int | None = None
    epoch: int | None = None
    found: bool = False

    @property
    def alone(self) -> bool:
        """Whether it names one message by its own bookmark."""
        return self.first == self.last and not self.found


class Outcome(NamedTuple):
    """Messages that share a result."""

    topic: str
    partition: int
    first: int
    last: int
    result: Result


def each_once(claims: Iterable[Claim], outcomes: list[Outcome]) -> Iterator[Claim]:
    """Yield claims, less what an earlier one of the same command named with a stale token: the first counts (C16).

    What was settled, or refused for another reason, is refused the second time by its state.

    Args:
        claims: in the order in which they were named.
        outcomes: what has become of the claims so far; what is left out of one is answered here as before.
    """
    looked, stale = 0, []
    for claim in claims:
        stale += [one for one in outcomes[looked:] if one.result is Result.STALE]
        looked = len(outcomes)
        if not stale:
            yield claim
            continue
        at = claim.first
        for one in sorted(one for one in stale if one[:2] == claim[:2]):
            low, high = max(one.first, at), min(one.last, claim.last)
            if low > high:
                continue
            if low > at:
                yield claim._replace(first=at, last=low - 1)
            outcomes.append(one._replace(first=low, last=high))
            at = high + 1
        if at <= claim.last:
            yield claim._replace(first=at)


def join(outcomes: list[Outcome], since: int) -> None:
    """Join neighbours with one result, from an index on: where an answer is parted would tell what is hidden (X4)."""
    joined: list[Outcome] = []
    for one in outcomes[since:]:
        last = joined[-1] if joined else None
        if last is not None and last[:2] == one[:2] and last.result is one.result and last.last + 1 == one.first:
            joined[-1] = last._replace(last=one.last)
        else:
            joined.append(one)
    outcomes[since:] = joined


RESULTS: Final = tuple(Result)
_CODE: Final = {result: code for code, result in enumerate(RESULTS)}
SETTLED: Final = _CODE[Result.SETTLED]
_NOT_HOLDER: Final = _CODE[Result.NOT_HOLDER]
NOT_LEASED: Final = _CODE[Result.NOT_LEASED]
_STALE: Final = _CODE[Result.STALE]
UNKNOWN: Final = _CODE[Result.UNKNOWN]
_TIME_LIMIT: Final = _CODE[Result.TIME_LIMIT]
_EXPIRES: Final = route(Trigger.DEADLINE).takes


def _results(results: Mapping[State, Result]) -> NDArray[np.uint8]:
    return np.array([_CODE[results.get(state, Result.ALREADY_SETTLED)] for state in State], np.uint8)


_SPARED: Final = _results(
    {
        State.AVAILABLE: Result.NOT_LEASED,
        State.DELAYED: Result.NOT_LEASED,
        State.SENT: Result.NOT_LEASED,
        State.EXPIRED: Result.TIME_LIMIT,
        State.TRANSFERRING: Result.TRANSFERRING,
    }
)
"""By state: the result of a settlement for a message that the life table has no row for."""

_SPARED_BY_TRANSFER: Final = _results(
    {
        State.AVAILABLE: Result.NOT_LEASED,
        State.DELAYED: Result.NOT_LEASED,
        State.LEASED: Result.LEASED,
        State.EXPIRED: Result.TIME_LIMIT,
        State.TRANSFERRING: Result.TRANSFERRING,
    }
)
"""By state: the result of a transfer for a message that it may not take."""

TRIGGERS: Final = {action: Trigger(action.value) for action in SettleAction}
"""The trigger that each action has for the messages that it settles."""

_ROUTES: Final = {action: route(trigger) for action, trigger in TRIGGERS.items()}

NO_TOKEN: Final = -1
"""Stands for a delivery count that the client did not send."""


def judge(
    action: SettleAction,
    segment: Segment,
    where: Where,
    holder: int,
    token: int | NDArray[np.int64] | None,
    leasing: Leasing,
    now_ms: int,
) -> NDArray[np.uint8]:
    """Decide about some places of a segment; the codes are indexes into `RESULTS`.

    Args:
        action: what is asked for.
        segment: where the messages stand.
        where: the places.
        holder: number of the subscription that asks, or one that nobody has.
        token: delivery count that the client knows of, None if it did not say; or one for each place, then `NO_TOKEN`.
        leasing: who may settle.
        now_ms: the command's instant; negative while expiration is off.
    """
    if isinstance(where, slice) and where.stop - where.start == 1:
        alone = token if token is None or isinstance(token, int) else int(token[0])
        if isinstance(token, np.ndarray) and alone == NO_TOKEN:
            alone = None
        return np.array((_judge_one(action, segment, where.start, holder, alone, leasing, now_ms),), np.uint8)
    state = segment.state[where]
    strict = leasing is Leasing.STRICT
    takes = _ROUTES[action].takes
    settled, codes = by_state(takes, state), by_state(_SPARED, state)
    if strict or action is SettleAction.RENEW:
        held = by_state(FILLS, state)
        mine = np.zeros(len(codes), bool) if segment.holder is None else held & (segment.holder[where] == holder)
        codes[settled & held] = _NOT_HOLDER
        settled &= mine
    if token is not None:
        # Fewer deliveries than the token says: that one never was. Its message is gone with its topic, another one
        # bears its bookmark (C42).
        deliveries = segment.deliveries[where]
        acknowledged = action is SettleAction.ACKNOWLEDGE and not strict
        stale = deliveries < token if acknowledged else deliveries != token
        if isinstance(token, np.ndarray):
            stale &= token != NO_TOKEN
        if stale.any():
            stale &= settled & (state != State.SENT)
            codes[stale] = _STALE
            settled &= ~stale
    codes[settled] = SETTLED
    codes[late_among(by_state(_EXPIRES, state), segment, where, now_ms)] = _TIME_LIMIT
    return codes


def _judge_one(
    action: SettleAction, segment: Segment, slot: int, holder: int, token: int | None, leasing: Leasing, now_ms: int
) -> int:
    """The same for one place: most settlements name one message, and columns cost as much for it as for hundreds."""
    state = int(segment.state[slot])
    if _EXPIRES[state] and now_ms >= 0 and segment.deadline_ms is not None and segment.deadline_ms[slot] <= now_ms:
        return _TIME_LIMIT
    strict = leasing is Leasing.STRICT
    if not _ROUTES[action].takes[state]:
        return int(_SPARED[state])
    if strict or action is SettleAction.RENEW:
        held = bool(FILLS[state])
        if not held:
            return int(_SPARED[state])
        if segment.holder is None or segment.holder[slot] != holder:
            return _NOT_HOLDER
    if token is not None and state != State.SENT:
        deliveries = int(segment.deliveries[slot])
        acknowledged = action is SettleAction.ACKNOWLEDGE and not strict
        if deliveries < token if acknowledged else deliveries != token:
            return _STALE
    return SETTLED


def judge_transfer(
    segment: Segment, first: int, stop: int, number: int, wanted: tuple[State, ...], now_ms: int
) -> NDArray[np.uint8]:
    """Decide what a transfer may do with the places `first` to `stop - 1` of a segment (Q17).

    Args:
        segment: where the messages stand.
        first: first slot.
        stop: slot behind the last.
        number: of the transfer.
        wanted: states in which it is settled; of those that are TRANSFERRING only this transfer's.
        now_ms: the command's instant; negative while expiration is off.
    """
    state = segment.state[first:stop]
    codes = by_state(_SPARED_BY_TRANSFER, state)
    fitting = np.isin(state, wanted)
    if segment.holder is not None:
        fitting &= (state != State.TRANSFERRING) | (segment.holder[first:stop] == number)
    codes[fitting] = SETTLED
    codes[late_among(by_state(_EXPIRES, state), segment, slice(first, stop), now_ms)] = _TIME_LIMIT
    return codes


def late_among(some: NDArray[np.bool_], segment: Segment, where: Where, now_ms: int) -> NDArray[np.bool_]:
    """Those of some places that are past their deadline; `now_ms` < 0 = none is."""
    if now_ms < 0 or segment.deadline_ms is None or not some.any():
        return np.zeros(len(some), bool)
    late: NDArray[np.bool_] = some & (segment.deadline_ms[where] <= now_ms)
    return late


def outcomes_of(claims: Sequence[Claim], codes: NDArray[np.uint8]) -> list[Outcome]:
    """The same for several claims one after the other, with the codes of all their messages."""
    firsts = np.array([claim.first for claim in claims])
    counts = np.array([claim.last for claim in claims]) - firsts + 1
    begins = np.cumsum(counts) - counts
    edges = np.unique(np.concatenate((begins, np.flatnonzero(np.diff(codes)) + 1)))
    of = np.searchsorted(begins, edges, "right") - 1
    offsets = firsts[of] + edges - begins[of]
    lasts = offsets + np.diff(edges, append=len(codes)) - 1
    topic, partition = claims[0][:2]
    return [
        Outcome(topic, partition, first, last, RESULTS[code])
        for first, last, code in zip(offsets.tolist(), lasts.tolist(), codes[edges].tolist(), strict=True)
    ]


def outcomes(topic: str, partition: int, offset: int, codes: NDArray[np.uint8]) -> list[Outcome]:
    """Join neighbours that share a result; `offset` is the first message's."""
    if len(codes) == 1:
        return [Outcome(topic, partition, offset, offset, RESULTS[codes[0]])]
    breaks = (np.flatnonzero(np.diff(codes)) + 1).tolist()
    edges = [0, *breaks, len(codes)]
    return [
        Outcome(topic, partition, offset + first, offset + stop - 1, RESULTS[codes[first]])
        for first, stop in pairwise(edges)
    ]

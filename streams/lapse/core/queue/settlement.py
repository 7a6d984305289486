"""Settlement: what becomes of each bookmark that a subscription settles (Q8, C13 to C18)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.life import Trigger, route
from lapse.core.queue.segment import (
    AVAILABLE,
    DELAYED,
    EXPIRED,
    LEASED,
    SENT,
    TRANSFERRING,
    Segment,
    State,
    Where,
)
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


RESULTS: Final = tuple(Result)
_CODE: Final = {result: code for code, result in enumerate(RESULTS)}
SETTLED: Final = _CODE[Result.SETTLED]
_ALREADY_SETTLED: Final = _CODE[Result.ALREADY_SETTLED]
_NOT_HOLDER: Final = _CODE[Result.NOT_HOLDER]
NOT_LEASED: Final = _CODE[Result.NOT_LEASED]
_STALE: Final = _CODE[Result.STALE]
UNKNOWN: Final = _CODE[Result.UNKNOWN]
_TIME_LIMIT: Final = _CODE[Result.TIME_LIMIT]

NO_TOKEN: Final = -1
"""In place of a delivery count that the client did not say."""


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
    state = segment.state[where]
    codes = np.full(len(state), _ALREADY_SETTLED, np.uint8)
    deliveries = segment.deliveries[where]
    # `never`: a delivery that never was. Its message is gone with its topic, another one bears its bookmark (C42).
    if token is None:
        stale = never = np.zeros(len(codes), bool)
    else:
        stale, never = deliveries != token, deliveries < token
        if isinstance(token, np.ndarray):
            stale &= token != NO_TOKEN
    leased = state == LEASED
    idle = (state == AVAILABLE) | (state == DELAYED)
    transferring = state == TRANSFERRING
    strict = leasing is Leasing.STRICT
    mine = np.zeros(len(codes), bool) if segment.holder is None else segment.holder[where] == holder
    codes[state == EXPIRED] = _TIME_LIMIT
    sent = state == SENT
    codes[sent] = SETTLED if action is not SettleAction.RENEW else NOT_LEASED
    if strict and action is not SettleAction.RENEW:
        codes[sent & ~mine] = _NOT_HOLDER
    settled = leased.copy()
    if strict or action is SettleAction.RENEW:
        codes[leased & ~mine] = _NOT_HOLDER
        settled &= mine
    refused = stale if strict or action is not SettleAction.ACKNOWLEDGE else never
    codes[settled & refused] = _STALE
    settled &= ~refused
    if idle.any():
        unleased = idle
        if strict or action in (SettleAction.CANCEL, SettleAction.RENEW):
            codes[unleased] = NOT_LEASED
        else:
            refused = stale if action is SettleAction.EXPIRE else never
            codes[unleased & refused] = _STALE
            unleased = unleased & ~refused
            settled |= unleased
        if now_ms >= 0 and segment.deadline_ms is not None:
            late = idle & (segment.deadline_ms[where] <= now_ms)
            codes[late] = _TIME_LIMIT
            settled &= ~late
    if transferring.any():
        codes[transferring] = _CODE[Result.TRANSFERRING]
        codes[late_among(transferring, segment, where, now_ms)] = _TIME_LIMIT
    codes[settled] = SETTLED
    return codes


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
    codes = np.full(stop - first, _CODE[Result.ALREADY_SETTLED], np.uint8)
    codes[state == State.EXPIRED] = _CODE[Result.TIME_LIMIT]
    codes[state == State.LEASED] = _CODE[Result.LEASED]
    codes[(state == State.AVAILABLE) | (state == State.DELAYED)] = _CODE[Result.NOT_LEASED]
    transferring = state == State.TRANSFERRING
    codes[transferring] = _CODE[Result.TRANSFERRING]
    fitting = np.isin(state, wanted)
    if segment.holder is not None:
        fitting &= ~transferring | (segment.holder[first:stop] == number)
    codes[fitting] = SETTLED
    expires = route(Trigger.DEADLINE).takes[state]
    codes[late_among(expires, segment, slice(first, stop), now_ms)] = _TIME_LIMIT
    return codes


def late_among(some: NDArray[np.bool_], segment: Segment, where: Where, now_ms: int) -> NDArray[np.bool_]:
    """Those of some places that are past their deadline; `now_ms` < 0 = none is."""
    if now_ms < 0 or segment.deadline_ms is None:
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
    breaks = (np.flatnonzero(np.diff(codes)) + 1).tolist()
    edges = [0, *breaks, len(codes)]
    return [
        Outcome(topic, partition, offset + first, offset + stop - 1, RESULTS[codes[first]])
        for first, stop in pairwise(edges)
    ]

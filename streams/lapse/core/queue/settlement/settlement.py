"""Settlement: decides the result for each message that a subscription settles (Q8, C13 to C18)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import pairwise, repeat
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.life.message_state import FILLS, State, by_state, state_of_all
from lapse.core.queue.life.table import Trigger, route
from lapse.core.queue.modes import Leasing
from lapse.core.queue.segments.segment import Segment, Where
from lapse.protocol.bookmark import RangeFields


class SettleAction(StrEnum):
    """The action of a settlement."""

    ACKNOWLEDGE = "acknowledge"
    CANCEL = "cancel"
    EXPIRE = "expire"
    RENEW = "renew"


SETTLEMENTS: Final = frozenset(map(str, SettleAction))
"""The names of the commands that settle messages."""


class Result(StrEnum):
    """The result of a settlement for a message (C16)."""

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
    """Messages that a settlement names: a range of offsets of one source, both ends included.

    `delivery_count` (C13) and `epoch` (C42) are the fencing tokens of the settled delivery, None if not sent. `found`
    is set for messages that a filter selected, and for parts of a range.
    """

    topic: str
    partition: int
    first: int
    last: int
    delivery_count: int | None = None
    epoch: int | None = None
    found: bool = False

    @property
    def names_one(self) -> bool:
        """Whether the claim names one message by its own bookmark."""
        return self.first == self.last and not self.found


class Outcome(NamedTuple):
    """Messages that share a result."""

    topic: str
    partition: int
    first: int
    last: int
    result: Result


def without_repeats(claims: Iterable[Claim], outcomes: list[Outcome]) -> Iterator[Claim]:
    """Yield claims without messages that an earlier claim of the command named with a stale token (C16).

    The first naming of a message counts. If it was settled, or refused for another reason, the message's state refuses
    the second.

    Args:
        claims: the claims in the order of the command.
        outcomes: the outcomes of the claims so far; the outcomes of left-out messages are added here.
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


def join_outcomes(outcomes: list[Outcome], since: int) -> None:
    """Join neighbouring outcomes with equal results, from an index on. Borders would reveal hidden messages (X4)."""
    joined: list[Outcome] = []
    for one in outcomes[since:]:
        last = joined[-1] if joined else None
        if last is not None and last[:2] == one[:2] and last.result is one.result and last.last + 1 == one.first:
            joined[-1] = last._replace(last=one.last)
        else:
            joined.append(one)
    outcomes[since:] = joined


RESULTS: Final = tuple(Result)
"""The results by their codes. SETTLED has the code 0."""

_CODE: Final = {result: code for code, result in enumerate(RESULTS)}
SETTLED: Final = _CODE[Result.SETTLED]
_NOT_HOLDER: Final = _CODE[Result.NOT_HOLDER]
NOT_LEASED: Final = _CODE[Result.NOT_LEASED]
STALE: Final = _CODE[Result.STALE]
UNKNOWN: Final = _CODE[Result.UNKNOWN]
_TIME_LIMIT: Final = _CODE[Result.TIME_LIMIT]
_EXPIRES: Final = route(Trigger.DEADLINE).takes
_EXPIRE: Final = tuple(_EXPIRES.tolist())
_ACKNOWLEDGE, _RENEW, _STRICT, _SENT = SettleAction.ACKNOWLEDGE, SettleAction.RENEW, Leasing.STRICT, State.SENT
"""Members that are compared for each message. A look-up in the enumeration takes five times as long."""


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
"""By state: the result of a settlement if the life table has no row for the state."""

_SPARED_BY_TRANSFER: Final = _results(
    {
        State.AVAILABLE: Result.NOT_LEASED,
        State.DELAYED: Result.NOT_LEASED,
        State.LEASED: Result.LEASED,
        State.EXPIRED: Result.TIME_LIMIT,
        State.TRANSFERRING: Result.TRANSFERRING,
    }
)
"""By state: the result of a transfer if it may not take the message."""

TRIGGERS: Final = {action: Trigger(action.value) for action in SettleAction}
"""By action: the trigger for the messages that it settles."""

_ROUTES: Final = {action: route(trigger) for action, trigger in TRIGGERS.items()}

NO_TOKEN: Final = -1
"""The token of a claim without a delivery count."""


def judge(
    action: SettleAction,
    segment: Segment,
    where: Where,
    holder: int,
    token: int | NDArray[np.int64] | None,
    leasing: Leasing,
    now_ms: int,
) -> NDArray[np.uint8]:
    """Return the results for slots of a segment, as indexes into `RESULTS`.

    Args:
        action: the action.
        segment: the segment.
        where: the slots.
        holder: number of the settling subscription, or an unused number.
        token: the delivery count that the client sent, None without one; or one for each slot, `NO_TOKEN` without one.
        leasing: the queue's rule on who may settle.
        now_ms: the command's instant, ms since the epoch; negative if expiration is off.
    """
    if isinstance(where, slice) and where.stop - where.start == 1:
        alone = token if token is None or isinstance(token, int) else int(token[0])
        if isinstance(token, np.ndarray) and alone == NO_TOKEN:
            alone = None
        return np.array((judge_one(action, segment, where.start, holder, alone, leasing, now_ms),), np.uint8)
    state = segment.state[where]
    strict = leasing is Leasing.STRICT
    if (
        isinstance(token, int)
        and state_of_all(state) is State.LEASED
        and not (segment.deliveries[where] != token).any()
    ):
        if not (strict or action is SettleAction.RENEW):
            return np.zeros(len(state), np.uint8)  # SETTLED, as all messages of most commands
        if segment.holder is not None and bool((segment.holder[where] == holder).all()):
            return np.zeros(len(state), np.uint8)
    takes = _ROUTES[action].takes
    settled, codes = by_state(takes, state), by_state(_SPARED, state)
    if strict or action is SettleAction.RENEW:
        held = by_state(FILLS, state)
        mine = np.zeros(len(codes), bool) if segment.holder is None else held & (segment.holder[where] == holder)
        codes[settled & held] = _NOT_HOLDER
        settled &= mine
    if token is not None:
        # A token above the delivery count is of another message, whose topic was deleted and whose bookmark was
        # reused (C42).
        deliveries = segment.deliveries[where]
        acknowledged = action is SettleAction.ACKNOWLEDGE and not strict
        stale = deliveries < token if acknowledged else deliveries != token
        if isinstance(token, np.ndarray):
            stale &= token != NO_TOKEN
        if stale.any():
            stale &= settled & (state != State.SENT)
            codes[stale] = STALE
            settled &= ~stale
    codes[settled] = SETTLED
    codes[late_mask(by_state(_EXPIRES, state), segment, where, now_ms)] = _TIME_LIMIT
    return codes


def judge_one(
    action: SettleAction, segment: Segment, slot: int, holder: int, token: int | None, leasing: Leasing, now_ms: int
) -> int:
    """Return the same for one slot. Most settlements name one message, for which columns would be slow."""
    state = segment.state.item(slot)
    if _EXPIRE[state] and now_ms >= 0 and segment.deadline_of(slot) <= now_ms:
        return _TIME_LIMIT
    strict = leasing is _STRICT
    if _ROUTES[action].effects[state] < 0:
        return int(_SPARED[state])
    if strict or action is _RENEW:
        if not FILLS[state]:
            return int(_SPARED[state])
        if segment.holder is None or segment.holder.item(slot) != holder:
            return _NOT_HOLDER
    if token is not None and state != _SENT:
        deliveries = segment.deliveries.item(slot)
        acknowledged = action is _ACKNOWLEDGE and not strict
        if deliveries < token if acknowledged else deliveries != token:
            return STALE
    return SETTLED


def judge_transfer(
    segment: Segment, first: int, stop: int, number: int, wanted: tuple[State, ...], now_ms: int
) -> NDArray[np.uint8]:
    """Return the results of a transfer for the slots `first` to `stop - 1` of a segment (Q17).

    Args:
        segment: the segment.
        first: first slot.
        stop: slot after the last.
        number: number of the transfer.
        wanted: states in which a message is settled; TRANSFERRING ones only if this transfer holds them.
        now_ms: the command's instant, ms since the epoch; negative if expiration is off.
    """
    state = segment.state[first:stop]
    codes = by_state(_SPARED_BY_TRANSFER, state)
    fitting = np.isin(state, wanted)
    if segment.holder is not None:
        fitting &= (state != State.TRANSFERRING) | (segment.holder[first:stop] == number)
    codes[fitting] = SETTLED
    codes[late_mask(by_state(_EXPIRES, state), segment, slice(first, stop), now_ms)] = _TIME_LIMIT
    return codes


def late_mask(some: NDArray[np.bool_], segment: Segment, where: Where, now_ms: int) -> NDArray[np.bool_]:
    """Return which of the slots marked in `some` are past their deadline; `now_ms` < 0 = none is."""
    if now_ms < 0 or segment.deadline_ms is None or not some.any():
        return np.zeros(len(some), bool)
    late: NDArray[np.bool_] = some & (segment.deadline_ms[where] <= now_ms)
    return late


_OUTCOME: Final[Callable[[tuple[str, int, int, int, Result]], Outcome]] = partial(tuple.__new__, Outcome)
_CLAIM: Final[Callable[[Sequence[object]], Claim]] = partial(tuple.__new__, Claim)
"""These make objects of all fields. The classes themselves take twice as long."""


def claims_of(fields: Iterable[RangeFields]) -> list[Claim]:
    """Return claims on ranges of messages."""
    return [_CLAIM((*one, False)) for one in fields]


def outcomes_of(
    claims: Sequence[Claim], firsts: NDArray[np.int64], counts: NDArray[np.int64], codes: NDArray[np.uint8]
) -> list[Outcome]:
    """Return the outcomes of consecutive claims of one source.

    Args:
        claims: the claims.
        firsts: the first offset of each.
        counts: the number of its messages.
        codes: the result codes of all their messages.
    """
    topic, partition = claims[0][:2]
    if bool((codes == codes[0]).all()):
        fields = zip(
            repeat(topic),
            repeat(partition),
            firsts.tolist(),
            (firsts + counts - 1).tolist(),
            repeat(RESULTS[codes[0]]),
        )
        return list(map(_OUTCOME, fields))
    begins = np.cumsum(counts) - counts
    edges = np.unique(np.concatenate((begins, np.flatnonzero(np.diff(codes)) + 1)))
    of = np.searchsorted(begins, edges, "right") - 1
    offsets = firsts[of] + edges - begins[of]
    lasts = offsets + np.diff(edges, append=len(codes)) - 1
    return [
        Outcome(topic, partition, first, last, RESULTS[code])
        for first, last, code in zip(offsets.tolist(), lasts.tolist(), codes[edges].tolist(), strict=True)
    ]


def outcomes(topic: str, partition: int, offset: int, codes: NDArray[np.uint8]) -> list[Outcome]:
    """Return the outcomes of consecutive messages, one per run of equal codes; `offset` is the first message's."""
    if len(codes) == 1:
        return [Outcome(topic, partition, offset, offset, RESULTS[codes[0]])]
    breaks = (np.flatnonzero(np.diff(codes)) + 1).tolist()
    edges = [0, *breaks, len(codes)]
    return [
        Outcome(topic, partition, offset + first, offset + stop - 1, RESULTS[codes[first]])
        for first, stop in pairwise(edges)
    ]

"""What the overview shows of each queue and SOW topic: figures, how they change, and what needs somebody."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapse_client.error import Closed, ConnectionFailed, LapseError, UnknownEntity
from lapse_client.queue.queues import Queues
from lapse_gateway.clients import Clients
from lapse_gateway.fault import Fault
from lapse_gateway.user import Caller

STATES: Final = ("available", "leased", "delayed", "scheduled", "held", "transferring", "dying")

TOPIC_FIGURES: Final = ("records", "scheduled", "dying", "subscriptions")

_FRESH_S: Final = 1.5
"""Figures so young are shown again: many pages ask no more often than one."""

PATIENCE_S: Final = 2.0
"""A page does not wait longer for figures, s; what comes later is on the next one."""

FIRST_S: Final = 0.2
"""A page that is opened waits no longer for figures, s: it is painted, and asks for them again at once."""

_SILENT_S: Final = 3.0
"""Figures that nobody has renewed for so long are shown no more, s: their worker may be gone."""

_RATE_S: Final = 10.0
"""The change is told over the last so many seconds."""

_IN_TURN: Final = 50
"""How many queues are asked in one look that no page shows."""

_FORGET_S: Final = 600.0
_OLD_MS: Final = 3_600_000
_CHECK: Final = "Check that a worker runs (`lapse worker`), and its log"
_NO_FIGURES: Final[Mapping[str, Any]] = {}


@dataclass(slots=True)
class Look:
    """One queue, as it was looked at last.

    Attributes:
        name: the queue.
        figures: what it answered; empty before the first answer, and where there was none.
        fault: why there is none.
        at_s: when it answered.
        asked_s: when it was asked last.
        used_s: when somebody looked last.
        depths: when it had which depth, over the last seconds.
    """

    name: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    at_s: float = -1e9
    asked_s: float = 0.0
    used_s: float = 0.0
    depths: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=600))
    asking: asyncio.Task[None] | None = None

    @property
    def per_s(self) -> float | None:
        """How the depth changes, a second; None while that is not known."""
        recent = [one for one in self.depths if one[0] >= self.at_s - _RATE_S]
        if len(recent) < 2 or recent[-1][0] - recent[0][0] < 1:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])

    @property
    def needs(self) -> list[str]:
        """What somebody should look at, the gravest first."""
        if self.fault:
            return [self.fault]
        figures, found = self.figures, list[str]()
        if dying := figures.get("dying"):
            found.append(f"{_some(dying, 'dead letter', 'is', 'are')} refused by the broker; the worker's log says why")
        if figures.get("paused"):
            found.append("deliveries are paused")
        if figures.get("available") and figures.get("subscriptions") == 0:
            found.append(f"{_some(figures['available'], 'message', 'is', 'are')} available, and nobody subscribes")
        if held_back := figures.get("groups_held_back"):
            found.append(f"{_some(held_back, 'group', 'waits', 'wait')}: the first message matches no subscription")
        if before := figures.get("before_barrier"):
            found.append(f"a barrier waits for {_some(before, 'message')}")
        if letters := figures.get("dying_before_barrier"):
            found.append(f"a barrier waits for {_some(letters, 'dead letter')} that the broker refuses")
        if hanging := figures.get("hanging"):
            waiting = figures.get("available", 0)
            found.append(
                f"{_some(hanging, 'message', 'is', 'are')} held by subscriptions that settle nothing and let their "
                f"leases end{f', while {waiting:,} more wait' if waiting else ''}"
            )
        if (figures.get("oldest_age_ms") or 0) >= _OLD_MS and figures.get("subscriptions"):
            found.append(f"the oldest message has waited for {figures['oldest_age_ms'] / 3_600_000:,.0f} h")
        return found


class Watch:
    """Looks at queues, or SOW topics, for all pages that are open.

    Args:
        clients: asks them.
        sow: whether it looks at SOW topics.
    """

    def __init__(self, clients: Clients, *, sow: bool = False) -> None:
        self._clients = clients
        self._sow = sow
        self._looks: dict[tuple[str, str], Look] = {}

    async def look(
        self,
        caller: Caller,
        names: list[str],
        shown: Collection[str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> list[Look]:
        """The figures of some queues; of those that do not answer, why.

        Args:
            caller: who looks.
            names: the queues.
            shown: those that a page shows: no older than a second or two. The others are asked in turn, so that a
                thousand queues keep no worker busy. None = all are shown.
            patience_s: how long to wait for the shown ones, in seconds; who looks for less looks again.
        """
        now = asyncio.get_running_loop().time()
        for key in [key for key, one in self._looks.items() if now - one.used_s > _FORGET_S]:
            del self._looks[key]
        looks = [self._looks.setdefault((caller.name, name), Look(name)) for name in names]
        for one in looks:
            one.used_s = now
        visible = [one for one in looks if shown is None or one.name in shown]
        others = [one for one in looks if shown is not None and one.name not in shown]
        for one in (*visible, *_in_turn(others)):
            if one.asking is None and now - one.at_s >= _FRESH_S:
                one.asked_s = now
                one.asking = asyncio.create_task(self._ask(caller, one, names))
        asking = [one.asking for one in visible if one.asking is not None]
        if asking:
            await asyncio.wait(asking, timeout=patience_s)
        if patience_s >= PATIENCE_S:
            for one in visible:
                _tell_of_silence(one)
        return looks

    async def _ask(self, caller: Caller, look: Look, names: list[str]) -> None:
        """Ask one queue, over the connection that all of them share."""
        try:
            async with self._clients.at_a_glance(caller, names, sow=self._sow) as queues:
                look.figures, look.fault = await self._figures(queues, look.name, caller)
        except (LapseError, Fault) as error:
            seen = error.among(caller.may_see_some) if isinstance(error, UnknownEntity) else error
            look.figures, look.fault = _NO_FIGURES, str(seen)
        if look.fault:
            look.depths.clear()
        look.at_s, look.asking = asyncio.get_running_loop().time(), None
        if look.figures:
            look.depths.append((look.at_s, look.figures.get("depth", 0)))

    async def _figures(self, queues: Queues, name: str, caller: Caller) -> tuple[Mapping[str, Any], str]:
        """What a queue answers, or why it does not."""
        try:
            answer = asyncio.wrap_future(queues.depth(name))
            return await asyncio.wait_for(answer, self._clients.timeout_s), ""
        except TimeoutError:
            return _NO_FIGURES, f"{name}: no answer within {self._clients.timeout_s:g} s. {_CHECK}"
        except (Closed, ConnectionFailed):
            raise  # none of them can be asked over this connection any more
        except UnknownEntity as error:
            return _NO_FIGURES, str(error.among(caller.may_see_some))
        except LapseError as error:
            return _NO_FIGURES, str(error)


def _some(count: int, what: str, one: str = "", more: str = "") -> str:
    """So many of something, with the verb that fits."""
    return f"{count:,} {what}{'' if count == 1 else 's'} {one if count == 1 else more}".rstrip()


def _tell_of_silence(look: Look) -> None:
    """Say that nobody answers, if that is so, rather than show figures as though they were of now."""
    silent_s = asyncio.get_running_loop().time() - look.asked_s
    if look.asking is None or look.fault:
        return
    if not look.figures:
        look.fault = f"no worker has answered yet. {_CHECK}"
    elif silent_s >= _SILENT_S:
        look.figures, look.fault = _NO_FIGURES, f"no worker has answered for {silent_s:.0f} s. {_CHECK}"
        look.depths.clear()


def _in_turn(looks: Sequence[Look]) -> list[Look]:
    """The looks whose turn it is: those that have never been, and of the others the oldest."""
    never = [one for one in looks if one.at_s < 0]
    return [*never, *sorted((one for one in looks if one.at_s >= 0), key=lambda one: one.at_s)[:_IN_TURN]]

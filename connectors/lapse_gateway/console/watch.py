"""The figures of queues and SOW topics for pages, with their rate of change and what needs attention."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapse_client.error import Closed, ConnectionFailed, EntityDeleted, LapseError, UnknownEntity, after_silence
from lapse_client.queue.queues import Queues
from lapse_gateway.clients import Clients
from lapse_gateway.fault import Fault
from lapse_gateway.user import Caller

log = logging.getLogger("lapse_gateway")

STATES: Final = ("available", "leased", "delayed", "scheduled", "held", "transferring", "dying")

TOPIC_FIGURES: Final = ("records", "scheduled", "dying", "subscriptions")

_FRESH_S: Final = 1.5
"""Figures younger than this are shown again, in seconds, so that many pages ask no more often than one."""

PATIENCE_S: Final = 2.0
"""The longest wait of a page for figures, in seconds. Later figures appear on the next page."""

FIRST_S: Final = 0.1
"""The longest wait of a newly opened page for figures, in seconds. It is painted, and asks again at once."""

_SILENT_S: Final = 3.0
"""Figures that have not been renewed for this time, in seconds, are not shown: their worker may be gone."""

_RATE_S: Final = 10.0
"""Length of the window for rates of change, in seconds."""

_IN_TURN: Final = 50
"""The most queues outside the shown page that one look asks."""

_NEVER_ASKED: Final = 200
"""The most queues outside the shown page that one look asks for the first time: more would delay the next page."""

_FORGET_S: Final = 600.0
_OLD_MS: Final = 3_600_000
_BROKER_S: Final = 3.0
"""How long brokers may take to answer before they are called silent, in seconds."""

_NO_FIGURES: Final[Mapping[str, Any]] = {}


@dataclass(slots=True)
class Look:
    """One queue at the last look. Instants are seconds of the event loop's clock.

    Attributes:
        name: name of the queue.
        figures: its last answer; empty before the first answer, and after a failure.
        fault: why there are no figures; empty if there are.
        at_s: when it answered or failed last.
        asked_s: when it was asked last.
        used_s: when a page looked last.
        depths: recent instants with the depth at each.
        asking: the task that asks it; None if none does.
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
        """The change of the depth per second; None while unknown."""
        recent = [one for one in self.depths if one[0] >= self.at_s - _RATE_S]
        if len(recent) < 2 or recent[-1][0] - recent[0][0] < 1:
            return None
        return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])

    @property
    def needs(self) -> list[str]:
        """The texts on what needs attention, the most serious first."""
        if self.fault:
            return [self.fault]
        figures, found = self.figures, list[str]()
        if dying := figures.get("dying"):
            found.append(
                f"{_count_text(dying, 'dead letter', 'is', 'are')} refused by the broker; the worker's log says why"
            )
        if figures.get("paused"):
            found.append("deliveries are paused")
        if figures.get("available") and figures.get("subscriptions") == 0:
            found.append(
                f"{_count_text(figures['available'], 'message', 'is', 'are')} available, and nobody subscribes"
            )
        if held_back := figures.get("groups_held_back"):
            found.append(
                f"{_count_text(held_back, 'group', 'waits', 'wait')}: the first message matches no subscription"
            )
        if before := figures.get("before_barrier"):
            found.append(f"a barrier waits for {_count_text(before, 'message')}")
        if letters := figures.get("dying_before_barrier"):
            found.append(f"a barrier waits for {_count_text(letters, 'dead letter')} that the broker refuses")
        if hanging := figures.get("hanging"):
            waiting = figures.get("available", 0)
            found.append(
                f"{_count_text(hanging, 'message', 'is', 'are')} held by subscriptions that hang: they settle "
                f"nothing{f', while {waiting:,} more wait' if waiting else ''}"
            )
        if (figures.get("oldest_age_ms") or 0) >= _OLD_MS and figures.get("subscriptions"):
            found.append(f"the oldest message has waited for {figures['oldest_age_ms'] / 3_600_000:,.0f} h")
        return found


class Watch:
    """Looks at queues, or SOW topics, for all open pages.

    Args:
        clients: the gateway's clients.
        sow: whether it looks at SOW topics.

    Attributes:
        pages: how many open pages of the console follow each SOW topic. Their subscriptions are not counted.
    """

    def __init__(self, clients: Clients, *, sow: bool = False) -> None:
        self.pages: Counter[str] = Counter()
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
        """Return a look at each queue, with its figures or the reason why there are none.

        Args:
            caller: the user who looks.
            names: names of the queues.
            shown: names of queues that a page shows. Their figures are at most a second or two old. The others are
                asked in turn, so that a thousand queues do not keep workers busy. None = all.
            patience_s: how long to wait for the shown queues, in seconds. A shorter wait reports no silence.
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
        if patience_s >= PATIENCE_S and any(map(_is_silent, visible)):
            why = await _who_is_silent(caller)
            for one in visible:
                _note_silence(one, why)
        return looks

    def needy(self, caller: Caller, names: Iterable[str]) -> list[str]:
        """Return those of some names that needed attention when they were looked at last."""
        known = ((name, self._looks.get((caller.name, name))) for name in names)
        return [name for name, look in known if look is not None and look.needs]

    async def _ask(self, caller: Caller, look: Look, names: list[str]) -> None:
        """Ask one queue, over the connection that all of them share."""
        try:
            async with self._clients.at_a_glance(caller, names, sow=self._sow) as queues:
                look.figures, look.fault = await self._figures(queues, look.name, caller, names)
        except (LapseError, Fault) as error:
            seen = error.among(caller.may_see_some) if isinstance(error, UnknownEntity) else error
            look.figures, look.fault = _NO_FIGURES, str(seen)
        except Exception as error:  # else this queue would never be asked again
            log.exception("%s could not be asked for its figures", look.name)
            look.figures, look.fault = _NO_FIGURES, f"the gateway failed ({type(error).__name__}); its log says where"
        if look.fault:
            look.depths.clear()
        look.at_s, look.asking = asyncio.get_running_loop().time(), None
        if look.figures:
            look.depths.append((look.at_s, look.figures.get("depth", 0)))

    async def _figures(
        self, queues: Queues, name: str, caller: Caller, names: list[str]
    ) -> tuple[Mapping[str, Any], str]:
        """Return a queue's figures, or the reason why there are none. `names` are those of all that `queues` asks."""
        try:
            answer = asyncio.wrap_future(queues.depth(name))
            async with asyncio.timeout(self._clients.timeout_s):
                figures = await answer
            if not self.pages[name]:
                return figures, ""
            return {**figures, "subscriptions": max(0, figures.get("subscriptions", 0) - self.pages[name])}, ""
        except TimeoutError:
            why = await _who_is_silent(caller)
            return _NO_FIGURES, f"{name}: no answer within {self._clients.timeout_s:g} s. {why}"
        except (Closed, ConnectionFailed):
            raise  # this client cannot ask any queue any more
        except (UnknownEntity, EntityDeleted) as error:
            self._clients.renew_glance(caller, names, sow=self._sow)  # it may be created anew
            seen = error.among(caller.may_see_some) if isinstance(error, UnknownEntity) else error
            return _NO_FIGURES, str(seen)
        except LapseError as error:
            return _NO_FIGURES, str(error)


def _count_text(count: int, what: str, one: str = "", more: str = "") -> str:
    """Return a count with its noun and the fitting verb."""
    return f"{count:,} {what}{'' if count == 1 else 's'} {one if count == 1 else more}".rstrip()


async def _who_is_silent(caller: Caller) -> str:
    """Return what to do about queues that do not answer: it may be the brokers that do not."""
    try:
        await asyncio.to_thread(caller.connection.await_broker, _BROKER_S)
    except ConnectionFailed as error:
        return f"The brokers do not answer either: {error}"
    return after_silence(user=caller.connection.user)


def _is_silent(look: Look) -> bool:
    """Return whether a queue that is being asked has had no fault yet, and no figures for a while."""
    silent_s = asyncio.get_running_loop().time() - look.asked_s
    return look.asking is not None and not look.fault and (not look.figures or silent_s >= _SILENT_S)


def _note_silence(look: Look, why: str) -> None:
    """Replace old figures of a silent queue by the fault that nobody answers, and why."""
    if not _is_silent(look):
        return
    if not look.figures:
        look.fault = f"no worker has answered yet. {why}"
    else:
        silent_s = asyncio.get_running_loop().time() - look.asked_s
        look.figures, look.fault = _NO_FIGURES, f"no worker has answered for {silent_s:.0f} s. {why}"
        look.depths.clear()


def _in_turn(looks: Sequence[Look]) -> list[Look]:
    """Return the looks whose turn it is: some that were never asked, and the oldest of those with an answer."""
    never = [one for one in looks if one.at_s < 0 and one.asking is None]
    answered = sorted((one for one in looks if one.at_s >= 0), key=lambda one: one.at_s)
    return [*never[:_NEVER_ASKED], *answered[:_IN_TURN]]

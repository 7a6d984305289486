"""Checks whether the entities are served: who answers, how fast, what is stuck, and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Any, Final

from lapse.config import Config
from lapse.core.error_code import ErrorCode
from lapse.doctor.finding import Finding, fine, warning, wrong
from lapse.doctor.lag import check_lag
from lapse.doctor.transactions import check_transactions
from lapse_client.error import CommandFailed, LapseError, UnknownEntity, if_unknown
from lapse_client.kafka.connection import Connection
from lapse_client.queue.queues import Figures, Queues
from lapse_client.reading.count_text import count_text

_PATIENCE_S: Final = 5.0
"""How long all entities together may take to answer, s. They are asked at the same time."""

_SLOW_S: Final = 1.0

_FEW: Final = 10
"""How many slow entities are asked again at the same time."""

_NAMED: Final = 10
"""The most entities without an answer that have a finding each. More of them share one."""

_RUN_ONE: Final = "Start a worker: `lapse worker`. If one runs, its log says what it waits for"


def check_service(config: Config, connection: Connection) -> list[Finding]:
    """Ask every entity.

    Args:
        config: the entities, and the permitted clock skew.
        connection: the cluster.
    """
    if not config.queue and not config.sow:
        return [warning("entities", "lapse.toml names none", "Add [queue.<name>] or [sow.<name>], then `lapse apply`")]
    return [
        *_check_entities(config, connection),
        *check_lag(config, connection),
        *check_transactions(config, connection),
        *_clock(config, connection),
    ]


class _EntityRequest:
    """An entity that was asked for its figures.

    Args:
        kind: `queue` or `SOW topic`.
        name: name of the entity.
        client: asks it.

    Attributes:
        what: kind and name.
        answer: its figures, once they arrive.
    """

    def __init__(self, kind: str, name: str, client: Queues) -> None:
        self.what = f"{kind} {name}"
        self._kind, self._name, self._client = kind, name, client
        self._began_s = self._ended_s = time.monotonic()
        self.answer: Future[Figures] = client.depth(name)
        self.answer.add_done_callback(self._record_end)

    def again(self) -> _EntityRequest:
        """Ask the entity again; return the new request."""
        return _EntityRequest(self._kind, self._name, self._client)

    def _record_end(self, _: Future[Figures]) -> None:
        self._ended_s = time.monotonic()

    def is_silent(self) -> bool:
        """Return whether no answer has arrived. A later one is ignored."""
        return self.answer.cancel() or self.answer.cancelled()

    @property
    def _took_s(self) -> float:
        return self._ended_s - self._began_s

    def is_slow(self) -> bool:
        """Return whether the answer has arrived, and late."""
        return self.answer.done() and self._took_s > _SLOW_S

    def findings(self) -> Iterator[Finding]:
        """Yield the findings from the answer, which must have arrived."""
        if (error := self.answer.exception()) is not None:
            yield _refused(self.what, error)
            return
        figures = self.answer.result() if self._kind == "queue" else {}
        text = f"answers after {self._took_s * 1000:.0f} ms" + (f", {_contents_text(figures)}" if figures else "")
        if self.is_slow():
            yield warning(self.what, text, "The worker lags behind, or is busy: see its log, and `lapse top`")
        else:
            yield fine(self.what, text)
        yield from _stuck_messages(self._name, figures)


def _check_entities(config: Config, connection: Connection) -> Iterator[Finding]:
    """Ask all entities at the same time, so that those without a worker are waited for together."""
    topics, requests = connection.partitions(), list[_EntityRequest]()
    with ExitStack() as clients:
        for kind, names in (("queue", config.queue), ("SOW topic", config.sow)):
            existing = list[str]()
            for name in names:
                try:
                    connection.shards(kind, name, topics)
                    existing.append(name)
                except LapseError as error:
                    yield _refused(f"{kind} {name}", error)
            if existing:
                client = Queues(existing, sow=kind != "queue", connection=connection, timeout_s=_PATIENCE_S)
                clients.enter_context(client)
                requests += [_EntityRequest(kind, name, client) for name in existing]
        wait([one.answer for one in requests], _PATIENCE_S)
        silent = [one.what for one in requests if one.is_silent()]
        requests = _with_slow_again(requests)
    for one in requests:
        if one.what not in silent:
            yield from one.findings()
    yield from _silent(silent, len(requests), connection.user)


def _with_slow_again(requests: Sequence[_EntityRequest]) -> list[_EntityRequest]:
    """Ask slow entities again, a few at a time: all the other questions may have made them slow.

    Returns:
        All requests, with the second ones of those that were answered in time. A group that is slow again is the last.
    """
    slow, faster = [one for one in requests if one.is_slow()], dict[_EntityRequest, _EntityRequest]()
    for first in range(0, len(slow), _FEW):
        again = {one: one.again() for one in slow[first : first + _FEW]}
        wait([one.answer for one in again.values()], _SLOW_S)
        answered = {old: new for old, new in again.items() if not new.is_silent() and not new.is_slow()}
        faster |= answered
        if len(answered) < len(again):
            break
    return [faster.get(one, one) for one in requests]


def _silent(silent: list[str], asked: int, user: str) -> Iterator[Finding]:
    """Yield the findings about entities that do not answer."""
    text, remedy = f"no answer within {_PATIENCE_S:g} s", _RUN_ONE + if_unknown(user)
    if len(silent) <= _NAMED:
        for what in silent:
            yield wrong(what, text, remedy)
        return
    yield wrong("entities", f"{text} from {len(silent):,} of {asked:,}: {', '.join(silent[:_NAMED])} …", remedy)


def _refused(what: str, error: BaseException) -> Finding:
    """Return the finding about an entity that cannot be asked."""
    if isinstance(error, UnknownEntity):
        text = str(error) if error.is_hidden else "it is not on this cluster yet"  # no other name: it is in lapse.toml
        return wrong(what, text, "Its topics are listed above: repair those first")
    if isinstance(error, CommandFailed) and error.code in (ErrorCode.UNAUTHENTICATED, ErrorCode.FORBIDDEN):
        text = f"is served, and its figures are for users with a right on it: {error}"
        return warning(what, text, "Set LAPSE_USER, and LAPSE_SECRET or LAPSE_SECRET_FILE, to those of such a user")
    return wrong(what, f"does not answer: {error}", _RUN_ONE)


def _contents_text(figures: dict[str, Any]) -> str:
    """Return what a queue contains, in words."""
    age_ms = figures.get("oldest_age_ms")
    oldest = f", the oldest has waited {age_ms / 1000:,.1f} s" if age_ms else ""
    subscriptions = figures.get("subscriptions", 0)
    return f"depth {figures.get('depth', 0):,}{oldest}, {count_text(subscriptions, 'subscription')}"


def _stuck_messages(name: str, figures: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings about messages of a queue that are stuck."""
    if figures.get("dying"):
        yield wrong(
            f"queue {name}",
            f"{count_text(figures['dying'], 'refused dead letter')}: the broker does not take them",
            f"See that the dead-letter topic exists and takes records of their size: `lapse queue peek {name}`",
        )
    if figures.get("hanging"):
        yield warning(
            f"queue {name}",
            f"{count_text(figures['hanging'], 'message')} held by subscriptions that hang: they settle nothing",
            f"Look at the consumers that hang: `lapse queue subscriptions {name}`",
        )
    if figures.get("depth") and not figures.get("subscriptions"):
        yield warning(
            f"queue {name}",
            "messages wait, and nobody subscribes",
            f"Start a consumer. What waits: `lapse queue peek {name}`",
        )


def _clock(config: Config, connection: Connection) -> Iterator[Finding]:
    """Compare this machine's clock with the broker's, as measured by the answers."""
    if not connection.clock.is_measured:
        return
    skew_ms = time.time() * 1000 - connection.clock.now_ms()
    text = f"{abs(skew_ms):.0f} ms {'ahead of' if skew_ms > 0 else 'behind'} the broker's"
    if abs(skew_ms) > config.lapse.max_clock_skew:
        yield warning("clock", text, "lapse goes by the broker's clock, so nothing is wrong yet: set up NTP")
    else:
        yield fine("clock", text)

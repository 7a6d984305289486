"""Whether the entities are served: who answers, how long that takes, what stands still, and which time it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from lapse.config import Config
from lapse.config.duration import in_words
from lapse.doctor.finding import Finding, fine, warning, wrong
from lapse.doctor.lag import of_lag
from lapse_client.connection import Connection
from lapse_client.error import LapseError, UnknownEntity
from lapse_client.queue import Queue
from lapse_client.sow import SowClient

_AT_ONCE: Final = 16
_PATIENCE_S: Final = 5.0
_SLOW_S: Final = 1.0


def of_service(config: Config, connection: Connection) -> list[Finding]:
    """Ask every entity.

    Args:
        config: the entities, and the skew of clocks that is allowed.
        connection: the cluster.
    """
    names = [*config.queue, *config.sow]
    if not names:
        return [warning("entities", "lapse.toml names none", "Add [queue.<name>] or [sow.<name>], then `lapse apply`")]
    with ThreadPoolExecutor(min(_AT_ONCE, len(names))) as threads:
        found = [one for some in threads.map(lambda name: list(_of(name, config, connection)), names) for one in some]
    return [*found, *of_lag(config, connection), *_clock(config, connection)]


def _of(name: str, config: Config, connection: Connection) -> Iterator[Finding]:
    """Ask one entity."""
    what, began_s = ("queue" if name in config.queue else "SOW topic"), time.monotonic()
    figures: dict[str, Any] = {}
    try:
        if name in config.queue:
            with Queue(name, connection=connection, timeout_s=_PATIENCE_S) as queue:
                figures = queue.depth()
        else:
            with SowClient(name, connection=connection, timeout_s=_PATIENCE_S) as sow:
                next(iter(sow.query(top_n=1)), None)
    except UnknownEntity as error:
        yield wrong(f"{what} {name}", str(error), "Its topics are told above: mend those first")
        return
    except LapseError as error:
        yield wrong(
            f"{what} {name}", f"does not answer: {error}", "Is a worker running? Its log says what it waits for"
        )
        return
    took_s = time.monotonic() - began_s
    told = f"answers after {took_s * 1000:.0f} ms" + (f", {_held(figures)}" if figures else "")
    if took_s > _SLOW_S:
        yield warning(f"{what} {name}", told, "The worker lags behind, or is busy: see its log, and `lapse top`")
    else:
        yield fine(f"{what} {name}", told)
    yield from _stuck(name, figures)


def _held(figures: dict[str, Any]) -> str:
    """What a queue holds, in words."""
    age_ms = figures.get("oldest_age_ms")
    oldest = f", the oldest {in_words(int(age_ms))} old" if age_ms else ""
    return f"depth {figures.get('depth', 0):,}{oldest}, {figures.get('subscriptions', 0)} subscriptions"


def _stuck(name: str, figures: dict[str, Any]) -> Iterator[Finding]:
    """What keeps messages of a queue from going on."""
    if figures.get("dying"):
        yield wrong(
            f"queue {name}",
            f"{figures['dying']:,} messages wait for their dead letters, which the broker refuses",
            f"See that the dead-letter topic exists and takes records of their size: `lapse queue peek {name}`",
        )
    if figures.get("depth") and not figures.get("subscriptions"):
        yield warning(f"queue {name}", "messages wait, and nobody subscribes", f"lapse queue subscribe {name}")


def _clock(config: Config, connection: Connection) -> Iterator[Finding]:
    """This machine's clock, against the broker's as the answers told it."""
    if not connection.clock.is_measured:
        return
    skew_ms = time.time() * 1000 - connection.clock.now_ms()
    told = f"{abs(skew_ms):.0f} ms {'ahead of' if skew_ms > 0 else 'behind'} the broker's"
    if abs(skew_ms) > config.lapse.max_clock_skew:
        yield warning("clock", told, "lapse goes by the broker's clock, so nothing is wrong yet: set up NTP")
    else:
        yield fine("clock", told)

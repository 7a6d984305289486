"""The outcome of a run, for its summary, its report and its JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapse.demo.accident import Death
from lapse.demo.findings import Findings
from lapse.demo.plan import Plan
from lapse.demo.timetable import Timetable
from lapse.demo.watch import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        plan: the plan.
        timetable: when the flights left.
        published: the number of published flights, according to the publisher.
        aircraft: the number of updates of the SOW topic.
        most_in_sight: the most aircraft in the SOW topic at once.
        in_sight_at_end: aircraft in it after all lifetimes; None if it did not answer.
        moments: observations during the run.
        deaths: processes that were killed.
        findings: what Spark computed.
        served_s: how long the queue was in use, s.
        total_s: how long everything took, s.
        report: path of the report.
    """

    plan: Plan
    timetable: Timetable
    published: int
    aircraft: int
    most_in_sight: int
    in_sight_at_end: int | None
    moments: list[Moment]
    deaths: list[Death]
    findings: Findings
    served_s: float
    total_s: float
    report: Path

    @property
    def balanced(self) -> bool:
        """Whether the ledger adds up, with as many flights as the publisher reports."""
        return self.findings.ledger.balanced and self.findings.ledger.published == self.published

    def as_json(self) -> dict[str, Any]:
        """Return the outcome for `orjson.dumps`."""
        return {
            "balanced": self.balanced,
            "flights": self.published,
            "aircraft_updates": self.aircraft,
            "aircraft_in_sight_at_most": self.most_in_sight,
            "aircraft_in_sight_at_end": self.in_sight_at_end,
            "killed": [{"at_ms": death.at_ms, "name": death.name, "back_ms": death.back_ms} for death in self.deaths],
            "seconds": {"queue": round(self.served_s, 1), "total": round(self.total_s, 1)},
            "seed": self.plan.seed,
            "report": str(self.report),
            **self.findings.as_json(),
        }

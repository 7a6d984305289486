"""The outcome of a run: everything that its summary, its report and its JSON tell."""

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
    """What a run came to.

    Attributes:
        plan: what was planned.
        timetable: when the flights went.
        published: flights that the publisher says it has published.
        aircraft: updates of the SOW topic.
        most_in_sight: most aircraft in the SOW topic at once.
        in_sight_at_end: aircraft in it when all lifetimes were over; None if it did not answer.
        moments: what was seen while it ran.
        deaths: processes killed.
        findings: what Spark reckoned.
        served_s: how long the queue was at work, in seconds.
        total_s: how long all took, in seconds.
        report: where the report is.
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
        """Whether the ledger adds up, and has as many flights as the publisher says."""
        return self.findings.ledger.balanced and self.findings.ledger.published == self.published

    def as_json(self) -> dict[str, Any]:
        """For `orjson.dumps`."""
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

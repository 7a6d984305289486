"""The crew: publisher, workers and subscribers, which have accidents and are started again."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from lapse.demo.accident import WORKER, Accident, Death, accidents
from lapse.demo.member import Member
from lapse.demo.plan import Plan
from lapse.demo.stage import Stage

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 90.0
_MOST_CRASHES: Final = 5
_BUSY: Final = "A busy machine needs more time, or fewer flights: `--minutes 6 --flights 50000`"


class Crew:
    """All processes of a run.

    Args:
        plan: the plan of the run.
        stage: has their logs and their configuration.

    Attributes:
        publisher: the publisher's process.
        workers: processes that serve queue and SOW topic.
        subscribers: processes that consume.
        deaths: the processes that were killed, in order.
        crashes: processes that ended although nobody killed them. Each was started again.
    """

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self._plan = plan
        path = stage.directory / "plan.json"
        plan.write(path)
        environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": plan.bootstrap_servers}
        configuration = str(stage.configuration)

        def member(name: str, *command: str) -> Member:
            return Member(name, command, stage.log(name), environment)

        self.publisher = member("publisher", "-m", "lapse.demo.publisher", str(path))
        self.workers = [
            member(f"worker-{number}", *_worker(configuration, stage.directory / f"worker-{number}"))
            for number in range(plan.workers)
        ]
        self.subscribers = [
            member(f"subscriber-{number}", "-m", "lapse.demo.subscriber", str(path), str(number), "{life}")
            for number in range(plan.subscribers)
        ]
        self.deaths: list[Death] = []
        self.crashes: list[str] = []
        self._accidents = accidents(plan)
        self._absent: list[tuple[float, Member, int]] = []

    @property
    def all_members(self) -> list[Member]:
        """All processes, in the order in which they stop."""
        return [self.publisher, *self.subscribers, *self.workers]

    def start(self) -> None:
        """Start all processes, and wait until they are ready.

        Raises:
            DemoFailed: one of them is not; the text ends with its log.
        """
        for one in (*self.workers, self.publisher, *self.subscribers):
            one.start()
        until = time.monotonic() + _PATIENCE_S
        while not all(one.ready for one in (*self.subscribers, self.publisher)):
            for one in (*self.workers, self.publisher, *self.subscribers):
                if not one.alive:
                    raise one.failure(f"ended with code {one.code}")
            if time.monotonic() > until:
                late = next(one for one in (*self.subscribers, self.publisher) if not one.ready)
                raise late.failure(f"is not at work after {_PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def kill_and_restart(self, since_start_s: float) -> None:
        """Carry out due accidents, and start absent processes again.

        Args:
            since_start_s: seconds since the first announcement.

        Raises:
            DemoFailed: the publisher ended early, or processes crash again and again.
        """
        while self._accidents and self._accidents[0].after_s <= since_start_s:
            self._cause_accident(self._accidents.pop(0))
        for back_s, member, place in list(self._absent):
            if time.monotonic() >= back_s:
                self._absent.remove((back_s, member, place))
                member.start()
                self.deaths[place] = replace(self.deaths[place], back_ms=round(time.time() * 1000))
        absent = {member.name for _, member, _ in self._absent}
        for member in (*self.workers, *self.subscribers):
            if not member.alive and member.name not in absent:
                self.crashes.append(f"{member.name} ended with code {member.code}")
                log.error("%s", member.failure(f"ended with code {member.code}; it is started again"))
                if len(self.crashes) > _MOST_CRASHES:
                    raise member.failure(f"ended with code {member.code}, and it was not the first time. {_BUSY}")
                member.start()
        if not self.publisher.alive and not self.publisher.reported.get("done"):
            raise self.publisher.failure(f"ended with code {self.publisher.code}")

    def end_accidents(self) -> None:
        """Prevent further accidents, and let absent processes come back at once."""
        self._accidents.clear()
        self._absent = [(0.0, member, place) for _, member, place in self._absent]

    def stop(self, members: list[Member]) -> None:
        """Stop some processes, all at the same time."""
        for one in members:
            one.ask_to_stop()
        for one in members:
            one.stop()

    def _cause_accident(self, accident: Accident) -> None:
        team = self.workers if accident.kind == WORKER else self.subscribers
        # If that one is absent already, as on a slow machine, the next one is killed.
        candidates = [team[(accident.number + step) % len(team)] for step in range(len(team))]
        member = next((one for one in candidates if one.alive), None)
        if member is None:
            return
        member.kill()
        self.deaths.append(Death(round(time.time() * 1000), member.name))
        self._absent.append((time.monotonic() + accident.absent_s, member, len(self.deaths) - 1))


def _worker(configuration: str, data: Path) -> list[str]:
    arguments = ["--config", configuration, "--data-dir", str(data), "--log-level", "warning", "--no-supervise"]
    return ["-m", "lapse", "worker", *arguments]

"""Scenarios: what is simulated, and every combination of what is to be compared."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lapse.config import QueueConfig
from lapse.config.definition import Definition
from lapse.runtime.topics.definition_draft import patched
from lapse.simulation.arrival import Arrivals
from lapse.simulation.crew import Crew
from lapse.simulation.outcome import Outcome
from lapse.simulation.simulated_queue import SimulatedQueue

MOST: Final = 200
"""The greatest number of combinations that are compared."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One combination.

    Attributes:
        label: what it is, by name: settings as they were given, and of the crew what varies.
        config: the queue's settings.
        crew: the consumers.
    """

    label: Mapping[str, str]
    config: QueueConfig
    crew: Crew


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario, and what came of it."""

    scenario: Scenario
    outcome: Outcome

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        crew = self.scenario.crew
        stated = {"subscribers": crew.subscribers, "backlog": crew.backlog, "service": str(crew.service)}
        return {"scenario": dict(self.scenario.label), **stated, **self.outcome.facts(crew.subscribers)}


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a setting.

    Attributes:
        key: the setting, with dots where it is one of a table.
        text: the value as it was given.
        tree: the same as in `lapse.toml`.
    """

    key: str
    text: str
    tree: Mapping[str, Any]


def scenarios(
    definition: Definition, beside: Path, settings: Sequence[Setting], crews: Iterable[Crew]
) -> list[Scenario]:
    """Every combination.

    Args:
        definition: the queue as `lapse.toml` has it.
        beside: where the files are that its settings name.
        settings: what is set instead; several values of one key are compared.
        crews: the consumers that are compared.

    Raises:
        ValueError: a setting is not understood, or there are too many combinations.
    """
    values: dict[str, list[Setting]] = {}
    for one in settings:
        values.setdefault(one.key, []).append(one)
    some_crews = list(crews)
    count = len(some_crews)
    for some in values.values():
        count *= len(some)
    if count > MOST:
        raise ValueError(f"these are {count} combinations; {MOST} are compared at most")
    found: list[Scenario] = []
    for chosen in itertools.product(*values.values()):
        config = with_settings(definition, beside, chosen)
        for crew in some_crews:
            label = {one.key: one.text for one in chosen}
            label |= {"subscribers": str(crew.subscribers), "backlog": str(crew.backlog)}
            found.append(Scenario(label, config, crew))
    return found


def with_settings(definition: Definition, beside: Path, settings: Iterable[Setting]) -> QueueConfig:
    """A queue's settings, some of them others than `lapse.toml` has.

    Raises:
        ValueError: they are not understood; the text says which.
    """
    config = changed(definition, settings).config(beside)
    assert isinstance(config, QueueConfig)
    return config


def changed(definition: Definition, settings: Iterable[Setting]) -> Definition:
    """A queue's definition, some settings of it others than `lapse.toml` has; they are not checked yet."""
    tree: dict[str, Any] = dict(definition.settings)
    for one in settings:
        tree = patched(tree, one.tree)
    return Definition(definition.name, "queue", 1, "simulation", tree)


def simulate(name: str, scenario: Scenario, arrivals: Arrivals, seed: int) -> Run:
    """Run one scenario."""
    return Run(scenario, SimulatedQueue(name, scenario.config, arrivals, scenario.crew, seed).run())

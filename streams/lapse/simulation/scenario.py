"""Scenarios: what is simulated, in every combination of the values to compare."""

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
"""The greatest number of combinations to compare."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One combination.

    Attributes:
        label: its values by name: changed settings, and those of the crew.
        config: the queue's settings.
        crew: the consumers.
    """

    label: Mapping[str, str]
    config: QueueConfig
    crew: Crew


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario and its outcome."""

    scenario: Scenario
    outcome: Outcome

    def facts(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        crew = self.scenario.crew
        stated = {"subscribers": crew.subscribers, "backlog": crew.backlog, "service": str(crew.service)}
        return {"scenario": dict(self.scenario.label), **stated, **self.outcome.facts(crew.subscribers)}


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a setting.

    Attributes:
        key: the setting, with dots if it is in a table.
        text: the value, as the user wrote it.
        tree: the value as in `lapse.toml`.
    """

    key: str
    text: str
    tree: Mapping[str, Any]


def scenarios(
    definition: Definition, beside: Path, settings: Sequence[Setting], crews: Iterable[Crew]
) -> list[Scenario]:
    """Return every combination.

    Args:
        definition: the queue's definition in `lapse.toml`.
        beside: directory of the files that its settings name.
        settings: settings to use instead. Several values of one key are compared.
        crews: the consumers to compare.

    Raises:
        ValueError: a setting is not valid, or there are too many combinations.
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
    """Return a queue's settings, with some of `lapse.toml` replaced.

    Raises:
        ValueError: they are not valid; the text says which.
    """
    config = changed(definition, settings).config(beside)
    assert isinstance(config, QueueConfig)
    return config


def changed(definition: Definition, settings: Iterable[Setting]) -> Definition:
    """Return a queue's definition, with some settings replaced and not checked yet."""
    tree: dict[str, Any] = dict(definition.settings)
    for one in settings:
        tree = patched(tree, one.tree)
    return Definition(definition.name, "queue", 1, "simulation", tree)


def simulate(name: str, scenario: Scenario, arrivals: Arrivals, seed: int) -> Run:
    """Run one scenario."""
    return Run(scenario, SimulatedQueue(name, scenario.config, arrivals, scenario.crew, seed).run())

"""The number of copies of topics that must not be lost, and warnings if there are too few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

LEAST_IN_SYNC: Final = "min.insync.replicas"

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one topic.

    Attributes:
        most: replicas of the partition that has the fewest.
        least: `min.insync.replicas`, the number of replicas that must have a record before it counts as written; None
            if unknown.
        leaderless: the partitions that no broker leads, since none that has a copy answers.
    """

    most: int
    least: int | None = None
    leaderless: tuple[int, ...] = ()

    @classmethod
    def of(cls, replicas: Sequence[int], settings: Mapping[str, Any], leaderless: Sequence[int] = ()) -> Copies:
        """Make it from the replicas of each partition, the topic's settings, and the partitions without a leader."""
        least = settings.get(LEAST_IN_SYNC)
        return cls(min(replicas, default=1), None if least is None else int(least.value), tuple(leaderless))


def settings_of_new(factor: int) -> dict[str, str]:
    """Return the settings of a topic that is created with so many replicas: of three, one may be down."""
    return {LEAST_IN_SYNC: "2" if factor > 2 else "1"}


def warnings(brokers: int, factor: int, copies: Mapping[str, Copies]) -> list[str]:
    """Warn of topics that cannot be created, or may be lost with one broker, each with what to do.

    Args:
        brokers: the cluster's number of brokers. With a single one there is no choice.
        factor: `replication_factor` of `lapse.toml`.
        copies: the copies of changelogs, commands, dead letters and definitions.
    """
    found = _unreachable(copies)
    if factor > brokers:
        found.append(
            f"replication_factor = {factor} on a cluster of {brokers} broker{'s' * (brokers != 1)}: Kafka creates no "
            f"topic with more copies than brokers. Start the brokers that are missing, or set it to {brokers}"
        )
    if brokers < 2:  # a single broker cannot share topics
        return found
    if factor == 1:
        found.append(
            f"replication_factor = 1 on a cluster of {brokers} brokers: what `lapse apply` creates is lost with one "
            f"broker. Set it to {min(brokers, 3)}"
        )
    alone = [topic for topic, one in copies.items() if one.most == 1]
    if alone:
        found.append(
            f"{_listed(alone)} on one of {brokers} brokers only, and lost with it. Have Kafka add replicas "
            "(kafka-reassign-partitions)"
        )
    loose = [topic for topic, one in copies.items() if one.most > 1 and one.least == 1]
    if loose:
        found.append(
            f"{_listed(loose)} with {LEAST_IN_SYNC} = 1: what one broker alone has taken counts as written, and is "
            "lost with it. Set it to 2 where there are three copies"
        )
    return found


def _unreachable(copies: Mapping[str, Copies]) -> list[str]:
    """Warn of topics that require more copies of a record than there are replicas."""
    short = [topic for topic, one in copies.items() if one.least is not None and one.least > one.most]
    if not short:
        return []
    least, most = copies[short[0]].least, copies[short[0]].most
    warning = (
        f"{_listed(short)} with {LEAST_IN_SYNC} = {least}, and {most} replica{'s' * (most != 1)}: older brokers refuse "
        f"every write there, and newer ones ask for {most}. Have Kafka add replicas (kafka-reassign-partitions), or "
        "lower the setting"
    )
    return [warning]


def _listed(topics: Sequence[str]) -> str:
    more = len(topics) - _SHOWN
    shown = ", ".join(topics[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"{shown} {'are' if len(topics) > 1 else 'is'}"

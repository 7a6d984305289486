"""Checks whether the cluster has what `lapse.toml` needs: topics, their settings, rights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from lapse.config import Config, ConfigError, key
from lapse.core.duration import in_words
from lapse.doctor.finding import Finding, fine, warning, wrong
from lapse.runtime.topics.advice import warnings
from lapse.runtime.topics.cleanup_policy import OWN
from lapse.runtime.topics.cluster import Cluster, GroupRefused
from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.runtime.topics.wanted import Role, Wanted
from lapse_client.reading.count_text import count_text

_EXACTLY: Final = "message.timestamp.type"
"""A setting that must have exactly the wanted value, because the broker's clock counts."""

_RETENTION: Final = "retention.ms"
_AT_LEAST: Final = ("delete.retention.ms", "min.compaction.lag.ms")
"""Settings that must not be smaller, because a worker trusts its copy on disk for as long."""


def check_topics(config: Config) -> list[Finding]:
    """Check the cluster, like `lapse check` but in more detail.

    Args:
        config: names the cluster, and what it must have.
    """
    cluster, found = Cluster(config), list[Finding]()
    try:
        try:
            topology = cluster.topology(rights=True)
        except GroupRefused as error:
            found.append(
                wrong("rights", str(error), "docs/operations.md (Rights on the cluster) lists all that it needs")
            )
            topology = cluster.topology()
    except TopologyError as error:
        return [wrong("Kafka", str(error), "Until a broker answers, nothing else can be looked at")]
    found.append(
        fine(
            "Kafka",
            f"{count_text(topology.brokers, 'broker')} at {config.lapse.brokers}, "
            f"{count_text(len(topology.existing), 'topic')}",
        )
    )
    found += _differences(topology)
    found += _settings(topology, cluster.settings_of(one.name for one in topology.wanted()))
    found += [warning("configuration", one) for one in (*warnings(topology), *key.exposure_warnings(config))]
    try:
        key.read(config)
    except ConfigError as error:
        found.append(wrong("keys", str(error), "A worker would refuse to start here"))
    return found


def _differences(topology: Topology) -> Iterator[Finding]:
    differences = topology.differences()
    if not differences:
        yield fine("topics", f"{len(topology.wanted())} that lapse.toml needs are there, and fit")
    # `lapse apply` creates nothing for an entity that cannot be served in any case.
    first = {name: one.topic for one in differences if not one.mended for name in one.bars}
    missing, deleted = dict[str, list[Difference]](), topology.deleted()
    for one in sorted(differences, key=lambda one: one.mended):  # first what has to be mended by hand
        if one.create is not None:
            missing.setdefault(one.create.entity, []).append(one)
            continue
        remedy = "`lapse apply` mends it" if one.mended else "Do this yourself: `lapse apply` does not change it"
        yield wrong("topics", f"{one.topic}: {one.what}{_barred(one)}", remedy)
    for entity, ones in missing.items():
        remedy = "`lapse apply` creates " + ("it" if len(ones) == 1 else "them")
        if entity in first:
            remedy = f"Mend topic {first[entity]} first, then {remedy}"
        yield wrong("topics", _missing_text(entity, ones, again=entity in deleted), remedy)


def _missing_text(entity: str, missing: list[Difference], *, again: bool) -> str:
    """Return which topics an entity lacks, in one line, because a new entity lacks all of them."""
    if len(missing) == 1:
        return f"{missing[0].topic}: {missing[0].what}{_barred(missing[0])}"
    owner = (
        "for definitions" if any(one.create and one.create.role is Role.DEFINER for one in missing) else f"of {entity}"
    )
    anew = f"; {entity} was deleted, this begins a new one" if again else ""
    barred = next((text for one in missing if (text := _barred(one))), "")
    return f"{len(missing)} topics {owner} are missing: {', '.join(one.topic for one in missing)}{anew}{barred}"


def _barred(difference: Difference) -> str:
    """Return which entities are not served because of a difference; empty if all are."""
    return f"; not served because of it: {', '.join(difference.bars)}" if difference.bars else ""


def _settings(topology: Topology, settings: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Check settings of lapse's own topics that somebody changed."""
    own = [one for one in topology.wanted() if one.role in OWN and one.name in topology.existing]
    unseen = sorted(one.name for one in own if one.name not in settings)
    if unseen:
        yield warning(
            "rights",
            f"the settings of {len(unseen)} topics may not be read ({unseen[0]}, for one)",
            "Give this user Describe and DescribeConfigs on topics",
        )
    for one in own:
        actual = settings.get(one.name, {})
        broken = {}
        for name, wanted in one.config.items():
            value = actual[name].value if name in actual else wanted
            if (name == _EXACTLY and value != wanted) or (name in _AT_LEAST and int(value) < int(wanted)):
                broken[name] = f"{name} = {value}, and lapse needs {wanted}"
        remedy = _command(topology.config, one, list(broken))
        yield from (wrong("settings", f"topic {one.name} has {text}", remedy) for text in broken.values())
        yield from _too_short(topology.config, one, actual)


def _command(config: Config, topic: Wanted, names: Iterable[str]) -> str:
    """Return the command of Kafka's tools that gives a topic the wanted values of some settings."""
    values = ",".join(f"{name}={topic.config[name]}" for name in names)
    return (
        f"kafka-configs.sh --bootstrap-server {config.lapse.brokers} --alter --topic {topic.name} --add-config {values}"
    )


def _too_short(config: Config, topic: Wanted, actual: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn if Kafka removes a topic's records earlier than its entity's `retention` says; −1 keeps them for ever."""
    wanted_ms = int(topic.config.get(_RETENTION, -1))
    kept_ms = int(actual[_RETENTION].value) if _RETENTION in actual else -1
    if 0 <= kept_ms < wanted_ms:
        yield warning(
            "settings",
            f"topic {topic.name} keeps records for {in_words(kept_ms)}, and retention of {topic.entity} is "
            f"{in_words(wanted_ms)}: what nobody has read by then is lost",
            _command(config, topic, [_RETENTION]),
        )

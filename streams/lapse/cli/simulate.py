"""`lapse simulate`: what would become of a queue's messages, in virtual time and without a worker (X10)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
import orjson
from click.core import ParameterSource

from lapse.cli import cluster
from lapse.cli.config_option import CONFIG
from lapse.cli.define import read_settings
from lapse.cli.instant import INSTANT, When, at_ms
from lapse.cli.simulation_table import duration_text, endless_text, show, show_advice, varied_parameters
from lapse.config import Config, ConfigError, load
from lapse.config.definition import Definition, in_file
from lapse.core.duration import period_ms
from lapse.option_type import Read, check_span, not_empty
from lapse.protocol import topic as names
from lapse.simulation.advice import Advice, Adviser
from lapse.simulation.arrival import Arrivals, drawn
from lapse.simulation.crew import Crew
from lapse.simulation.distribution import Distribution, Pace, distribution, pace
from lapse.simulation.goal import Goal, goals
from lapse.simulation.scenario import Run, Scenario, Setting, changed, scenarios
from lapse.simulation.scenario import simulate as run
from lapse.simulation.serving import Serving, by_version
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

if TYPE_CHECKING:
    from lapse.simulation.recorded_work import RecordedWork

_SERVICE: Final = "100ms"
_BACKLOG: Final = 1
_MESSAGES: Final = 10_000


def _counts(text: str) -> tuple[int, ...]:
    """Parse whole numbers that commas separate."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= one <= _MOST_COUNT for one in found):
        raise ValueError(f"{text!r}: expected whole numbers up to {_MOST_COUNT:,}, such as 4 or 2,4,8")
    return found


_MOST_COUNT: Final = 100_000


def _share(text: str) -> float:
    """Parse a share: `5%`, or `0.05`."""
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise ValueError(f"{text!r}: expected a share such as 5% or 0.05")
    return found


def _settings(given: Sequence[str]) -> Iterator[Setting]:
    """Parse settings that replace the queue's own. Yield one setting for each of several values of a key."""
    for one in given:
        key, equals, values = one.partition("=")
        if not equals:
            read_settings((one,))  # raises with a message
        for value in [values] if values.lstrip()[:1] in ("[", "{", '"', "'") else values.split(","):
            yield Setting(key.strip(), value.strip(), read_settings((f"{key}={value.strip()}",)))


@click.command()
@click.argument("queue")
@CONFIG
@cluster.properties
@click.option(
    "-b",
    "--bootstrap-servers",
    callback=not_empty,
    help="The brokers, instead of those of KAFKA_BOOTSTRAP_SERVERS or lapse.toml.",
)
@click.option("--replay", is_flag=True, help="Replay what the cluster recorded, and compare the events.")
@click.option("--recorded", "from_topics", is_flag=True, help="Messages arrive as the cluster recorded them.")
@click.option("--since", type=INSTANT, help='Only the recording from then on; "2h": the last two hours.')
@click.option("--until", type=INSTANT, help="Only the recording until then.")
@click.option(
    "--arrivals",
    "gaps",
    type=Read("pace", pace),
    help="How often messages arrive: 50/s, poisson:50/s, or the time between two: exponential:20ms.",
)
@click.option(
    "--messages", type=click.IntRange(1), help=f"The number of messages.  [default: {_MESSAGES:,}, without --for]"
)
@click.option("--for", "for_ms", type=Read("duration", period_ms), help="How long messages arrive, such as 1h.")
@click.option("--lifetime", type=Read("distribution", distribution), help="The messages' lapse-ttl-ms.")
@click.option(
    "--service",
    type=Read("distribution", distribution),
    help=f"How long a consumer works on a message: 200ms, exponential:200ms, uniform:100ms:300ms, "
    f"lognormal:200ms:0.5.  [default: {_SERVICE}, or as recorded]",
)
@click.option(
    "--subscribers", type=Read("numbers", _counts), help="Consumers; 2,4,8 compares.  [default: 1, or as recorded]"
)
@click.option(
    "--backlog",
    type=Read("numbers", _counts),
    help="The greatest number of unsettled deliveries of each consumer; 1,20 compares.  [default: 1, or as recorded]",
)
@click.option(
    "--cancel",
    "cancels",
    type=Read("share", _share),
    default="0%",
    help="The share of deliveries that are cancelled, such as 5%.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE[,VALUE]...",
    help="Another setting of the queue, as in lapse.toml; several values are compared. May be repeated.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of all random values.")
@click.option(
    "--goal",
    type=Read("goal", goals),
    help='Find the smallest values that meet this goal: "99% served", "wait 99% < 2s".',
)
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), help="Write figures and plots as HTML.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per combination.")
def simulate(
    queue: str,
    config: Path,
    bootstrap_servers: str | None,
    replay: bool,
    from_topics: bool,
    since: When | None,
    until: When | None,
    gaps: Pace | None,
    messages: int | None,
    for_ms: int | None,
    lifetime: Distribution | None,
    service: Distribution | None,
    subscribers: tuple[int, ...] | None,
    backlog: tuple[int, ...] | None,
    cancels: float,
    settings: tuple[str, ...],
    seed: int,
    goal: tuple[Goal, ...] | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Simulate a queue: which messages would be served, and which would expire.

    QUEUE is a queue of lapse.toml. Its shards run the worker's own code in virtual time. Arrivals and consumers are
    drawn from distributions. No broker is needed. The same options give the same figures.

    With --recorded, messages arrive as they did on the cluster, and consumers are as fast as they were.

    With --replay, the queue's recorded messages and commands are replayed with the recorded times, and the resulting
    events are compared with those on its events topic. Exits with 1 if they differ.
    """
    _choose(replay, from_topics, gaps is not None, since is not None, until is not None)
    _check_page(page)
    span = _span(since, until)
    whole = _loaded(config)
    arrivals, work = None, None
    if gaps is None:
        recording = _recording(queue, config, whole, bootstrap_servers, span, as_json if replay else None)
        if recording is None:
            return
        definition, arrivals, work = recording
    else:
        definition = _in_file(config, whole, queue)
    try:
        crews = _crews(subscribers, backlog, service, cancels, work, arrivals)
        some = scenarios(definition, config.absolute().parent, list(_settings(settings)), crews)
        if gaps is not None:
            arrivals = _drawn(some[0], definition, gaps, messages, for_ms, lifetime, seed)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    assert arrivals is not None
    runs = _run_and_show(queue, some, arrivals, seed, as_json)
    advice: list[Advice] = []
    if goal is not None:
        adviser = Adviser(_first_values(definition, settings), config.absolute().parent, some[0], arrivals, seed, goal)
        show_advice(advice := list(adviser.advice()), goal, as_json)
    if page is not None:
        _write_page(page, queue, runs, advice, goal or ())


def _span(since: When | None, until: When | None) -> tuple[int | None, ...]:
    """Return the bounds of what is recorded, ms since the epoch.

    Raises:
        ValueError: it ends before it begins.
    """
    span = tuple(None if one is None else at_ms(one, _now_ms) for one in (since, until))
    check_span(*span)
    return span


def _recording(
    queue: str,
    config: Path,
    whole: Config,
    bootstrap_servers: str | None,
    span: tuple[int | None, ...],
    replay_as_json: bool | None,
) -> tuple[Definition, Arrivals, RecordedWork] | None:
    """Return a queue's definition, and what the cluster recorded of it within a span (ms since the epoch).

    With `replay_as_json` (None = no replay) it is replayed instead, and the comparison printed.
    """
    from lapse.cli import recorded  # a late import: it takes as long as thousands of simulated messages

    try:
        connection = cluster.connection(bootstrap_servers, config)
        by_topic = whole.lapse.definitions == "topic" and _is_defined(whole, connection)
        served = None if by_topic else _by_file(config, whole, queue)
        definition, whole, servings = served or recorded.defined(queue, config, whole, connection)
        if replay_as_json is not None:
            recorded.show(recorded.replay(queue, whole, servings, connection, *span), replay_as_json)
            return None
        found = recorded.read_arrivals_and_work(queue, whole.queue[queue], connection, *span)
    except (ConfigError, LapseError) as error:
        raise click.ClickException(str(error)) from error
    return definition, *found


def _run_and_show(queue: str, some: Sequence[Scenario], arrivals: Arrivals, seed: int, as_json: bool) -> list[Run]:
    """Simulate each combination, and print its figures: JSON as soon as they are known, a table at the end."""
    runs = []
    for one in some:
        runs.append(run(queue, one, arrivals, seed))
        if as_json:
            click.echo(orjson.dumps(runs[-1].facts()))
    if not as_json:
        show(runs, arrivals)
    for one_run in runs:
        if one_run.outcome.endless:
            click.echo(endless_text(one_run), err=True)
    return runs


def _choose(replay: bool, recorded: bool, drawn: bool, since: bool, until: bool) -> None:
    """Refuse options that exclude each other, and none at all of `--arrivals`, `--recorded` and `--replay`."""
    sources = [name for name, given in (("--replay", replay), ("--recorded", recorded), ("--arrivals", drawn)) if given]
    if not sources:
        raise click.UsageError("say what comes in: --arrivals, --recorded, or --replay to compare the events")
    if len(sources) > 1:
        raise click.UsageError(f"{' and '.join(sources)} exclude each other; give one of them")
    parts = [name for name, given in (("--since", since), ("--until", until)) if given]
    if drawn and parts:
        raise click.UsageError(f"{' and '.join(parts)}: for a part of a recording, with --recorded or --replay")
    if not drawn:
        _refuse_others(replay)


def _first_values(definition: Definition, settings: Sequence[str]) -> Definition:
    """Return a queue with the settings that replace its own, of several values of a key the first."""
    return changed(definition, {one.key: one for one in reversed(list(_settings(settings)))}.values())


def _check_page(page: Path | None) -> None:
    """Refuse a page in a directory that does not exist, before the simulation runs."""
    if page is not None and not page.absolute().parent.is_dir():
        raise click.UsageError(f"--page {page}: there is no directory {page.parent}; create it first")


def _now_ms() -> int:
    """Return the current time, ms since the epoch. Only relative options such as `--since -1h` depend on it."""
    return time.time_ns() // 1_000_000


def _crews(
    subscribers: tuple[int, ...] | None,
    backlog: tuple[int, ...] | None,
    service: Distribution | None,
    cancels: float,
    work: RecordedWork | None,
    arrivals: Arrivals | None,
) -> list[Crew]:
    """Return the consumers to compare. What no option says comes from the recording, if there is one."""
    times: dict[int, int] = {}
    if service is None and work is not None and work.took_ms and arrivals is not None:
        places = ((one.topic, one.partition, one.record.offset) for one in arrivals)
        times = {at: work.took_ms[place] for at, place in enumerate(places) if place in work.took_ms}
        service = Distribution("recorded", recorded_ms=tuple(times.values())) if times else None
    known = (0, 0) if work is None else (work.subscribers, work.backlog)
    return [
        Crew(count, most, service or distribution(_SERVICE), cancels, times)
        for count in subscribers or (known[0] or 1,)
        for most in backlog or (known[1] or _BACKLOG,)
    ]


def _refuse_others(replay: bool) -> None:
    """Refuse options for values that the recording contains."""
    context = click.get_current_context()
    allowed = {"queue", "config", "bootstrap_servers", "replay", "from_topics", "since", "until", "as_json"}
    allowed |= set() if replay else {"subscribers", "backlog", "service", "cancels", "settings", "seed", "page", "goal"}
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in allowed and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[-1]} says what the recording says; leave it out")


def _loaded(config: Path) -> Config:
    try:
        return load(config)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error


def _is_defined(whole: Config, connection: Connection) -> bool:
    """Return whether the definitions topic exists. If not, workers serve what their own files say.

    Raises:
        LapseError: the brokers do not let this user see it.
    """
    definitions = names.definitions(whole.lapse.app_id)
    if definitions in connection.partitions(definitions):
        return True
    if hidden := connection.hidden(definitions):
        raise hidden
    return False


def _by_file(config: Path, whole: Config, queue: str) -> tuple[Definition, Config, Mapping[int, Serving]]:
    """Return a queue of `lapse.toml`, the configuration, and how the queue is served, by version."""
    return _in_file(config, whole, queue), whole, by_version(queue, whole, None, config.absolute().parent)


def _in_file(config: Path, whole: Config, queue: str) -> Definition:
    """Return the definition of a queue in `lapse.toml`."""
    if queue not in whole.queue:
        there = ", ".join(sorted(whole.queue)) or "none"
        raise click.ClickException(f"{config}: there is no [queue.{queue}]; its queues are: {there}")
    return in_file(config)[queue]


def _drawn(
    scenario: Scenario,
    definition: Definition,
    gaps: Pace,
    messages: int | None,
    for_ms: int | None,
    lifetime: Distribution | None,
    seed: int,
) -> Arrivals:
    config = scenario.config
    if messages is None and for_ms is None:
        messages = _MESSAGES
    topic = next(iter(config.underlying(definition.name)), definition.name)
    return drawn(topic, config.partitions, gaps, messages, for_ms, lifetime, seed)


def _write_page(path: Path, queue: str, runs: Sequence[Run], advice: Sequence[Advice], goal: Sequence[Goal]) -> None:
    try:
        from lapse.cli import simulation_page  # few runs need what makes pages
    except ModuleNotFoundError as error:
        remedy = f"--page needs the Python package {error.name}. Install it with: pip install 'lapse[spark]'"
        raise click.ClickException(remedy) from error
    try:
        simulation_page.write(
            path, queue, runs, varied_parameters(runs), duration_text, advice, ", ".join(map(str, goal))
        )
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be written: {error}") from error
    click.echo(f"{path}: written", err=True)

"""`lapse worker`: runs the shards of `lapse.toml` that the consumer group assigns to this process."""

from __future__ import annotations

import gc
import logging
import logging.config
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from lapse.cli.config_option import CONFIG
from lapse.cli.log_option import LOG_FORMAT
from lapse.parent_death import end_with_parent
from lapse.process_end import CRASHED, bounded_end

if TYPE_CHECKING:
    from lapse.config import Config
    from lapse.config.decided_entities import DecidedEntities
    from lapse.runtime.application import LapseApp
    from lapse.runtime.endpoint import Endpoint
    from lapse.runtime.topics.cluster import Cluster
    from lapse.runtime.topics.definitions import DefinitionsTopic
    from lapse.runtime.topics.definitions_reader import Contents
    from lapse.runtime.worker_log import Format

_RESTART_DELAYS_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_STEADY_S: Final = 60.0
_ENDING_S: Final = 30.0
"""How long a worker may take to end after a signal, s. Only one whose brokers do not answer needs so long."""

_NOTHING_LOST: Final = "Nothing is lost: the next owner of its shards reads their journals"
_AGAIN_S: Final = 0.2
_EMPTY_S: Final = 10.0
"""How long a definitions topic that was without a leader is not believed to be empty, s."""

_OPEN_S: Final = 5.0
"""How long a worker that starts waits for the end of a change of the definitions that is under way, s."""

_NOTHING: Final = "neither [queue.<name>] nor [sow.<name>]; there is nothing to run"

_SWITCH_INTERVAL_S: Final = 0.001
"""How long a thread may hold Python's lock while another waits for it, s. Threads look after topics and definitions,
and the event loop with the shards waits for them: with Python's 5 ms noticeably."""

_ARENAS: Final = 2
"""Memory arenas of malloc. Threads of Kafka's clients hardly compete, and an arena for each takes more memory."""

_GARBAGE_THRESHOLDS: Final = (30_000, 1, 375)
"""Thresholds of Python's garbage collector. A step makes tens of thousands of short-lived tuples, and no cycles. With
the defaults, scanning them and the state took a quarter of the time of updates, and half of that of expiry. A scan
stops everything: 60 ms for the 150,000 objects of fifty new queues (C60). So the middle generation is scanned after
every second scan of the young one, and the oldest as rarely as before."""


@click.command()
@CONFIG
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="The worker's directory; by default that of lapse.toml."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least severity that is logged.",
)
@LOG_FORMAT
@click.option(
    "--supervise/--no-supervise", default=True, help="Start again after a crash (a failed write ends the process)."
)
def worker(config: Path, data_dir: Path | None, log_level: str, log_format: Format, supervise: bool) -> None:
    """Run a worker, which serves queues and SOW topics.

    Any number of workers share the shards. Stop with Ctrl-C or SIGTERM.
    """
    if supervise:
        again = [*_worker_command(config, data_dir, log_level, log_format), "--no-supervise"]
        sys.exit(_supervise(again, partial(_print_log_line, log_format)))
    try:
        _run(config, data_dir, log_level, log_format)
    except click.ClickException as error:
        if log_format == "text":
            raise
        _print_log_line(log_format, error.format_message())
        sys.exit(error.exit_code)


def _print_log_line(log_format: Format, text: str) -> None:
    """Print a sentence to standard error, in the form of the log."""
    from lapse.runtime.worker_log import JsonFormatter

    record = logging.LogRecord("lapse.worker", logging.ERROR, "", 0, text, None, None)
    click.echo(text if log_format == "text" else JsonFormatter().format(record), err=True)


def _worker_command(config: Path, data_dir: Path | None, log_level: str, log_format: Format) -> list[str]:
    command = [sys.executable, "-m", "lapse", "worker", "--config", str(config), "--log-level", log_level]
    command += ["--log-format", log_format]
    return [*command, "--data-dir", str(data_dir)] if data_dir is not None else command


def _supervise(command: list[str], log: Callable[[str], None]) -> int:
    """Run the worker, and start it again whenever it crashes, with growing pauses.

    Do not restart a worker that refuses to start, unless it ran before: the brokers may be away for a while.
    """
    from lapse.runtime import arenas

    crashes, ran = 0, False
    environment = arenas.with_huge_pages(os.environ)
    stopping = threading.Event()
    process: subprocess.Popen[bytes] | None = None

    def forward_signal(number: int, _frame: FrameType | None) -> None:
        stopping.set()
        if process is not None:
            process.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward_signal)
    while True:
        began = time.monotonic()
        process = subprocess.Popen(command, env=environment, preexec_fn=end_with_parent)  # noqa: PLW1509  # one system call
        if stopping.is_set():
            process.terminate()
        code = process.wait()
        ran = ran or code == CRASHED or code < 0
        if code == 0 or not ran:
            return code
        if stopping.is_set():
            return max(code, 0)
        crashes = 1 if time.monotonic() - began > _STEADY_S else crashes + 1
        delay_s = _RESTART_DELAYS_S[min(crashes, len(_RESTART_DELAYS_S)) - 1]
        log(f"lapse worker ended with code {code}; starting it again in {delay_s} s")
        if stopping.wait(delay_s):
            return 0


def _run(path: Path, data_dir: Path | None, log_level: str, log_format: Format) -> None:
    from lapse.config import ConfigError, load
    from lapse.runtime import arenas

    gc.disable()  # objects that imports make live until the end
    arenas.keep_to(_ARENAS)  # before Kafka's clients start threads
    try:
        config = load(path)
        by_topic = config.lapse.definitions == "topic"
        if not config.queue and not config.sow and not by_topic:
            raise ConfigError(f"{path}: {_NOTHING}")
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    if data_dir is not None:
        config = config.model_copy(update={"lapse": config.lapse.model_copy(update={"data_dir": str(data_dir)})})
    endpoint = _opened(config, log_level, log_format)
    decided = _read_definitions(path, config, endpoint) if by_topic else None
    serve(config if decided is None else decided.config, log_level, log_format, decided, endpoint)


def _opened(config: Config, log_level: str, log_format: Format) -> Endpoint:
    """Start the log and the HTTP endpoint. A signal stops the process at once, as nothing is under way yet."""
    from lapse.runtime import watchdog, worker_log
    from lapse.runtime.endpoint import Endpoint

    logging.config.dictConfig(worker_log.settings(log_level, log_format))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # a normal exit would wait for threads that wait for a broker
    endpoint = Endpoint()
    endpoint.open(config.lapse.metrics_host, config.lapse.metrics_port)
    watchdog.begin(endpoint.healthy)
    return endpoint


def _read_definitions(path: Path, config: Config, endpoint: Endpoint) -> DecidedEntities:
    """Read from the definitions topic what this worker serves (Q23)."""
    from lapse.config.decided_entities import before_definitions, decide
    from lapse.runtime.topics.cluster import Cluster, awaited
    from lapse.runtime.topics.definitions import DefinitionsTopic
    from lapse.runtime.topics.topology import TopologyError

    try:
        with ThreadPoolExecutor(1) as beside:  # so that signals are handled while librdkafka waits
            cluster, topic = Cluster(config), DefinitionsTopic(config)
            beside.submit(awaited, cluster.reach, endpoint.note_away).result()
            there = beside.submit(_once_there, topic, endpoint.note_away).result()
        endpoint.note_back()
        if there is None:
            decided = before_definitions(path, config, topic.name)
        else:
            decided = replace(decide(path, config, there.found), offsets=there.offsets)
    except (TopologyError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if hidden := topic.open_change():
        decided = replace(decided, warnings=(*decided.warnings, f"{hidden}. The worker takes it up as soon as it ends"))
    if decided.definitions:
        return decided
    if there is None and not _can_be_defined(cluster, config, endpoint):
        raise click.ClickException(f"{path}: {_NOTHING}. If programs are to create queues, run `lapse apply` first")
    idle = f"nothing is defined that can be served; the worker waits for `lapse apply`, or for programs: {topic.name}"
    return replace(decided, warnings=(*decided.warnings, idle))


def _can_be_defined(cluster: Cluster, config: Config, endpoint: Endpoint) -> bool:
    """Return whether programs can create entities here, because `lapse apply` has made the topics for that."""
    from lapse.protocol import topic as names
    from lapse.runtime.topics.cluster import awaited

    with ThreadPoolExecutor(1) as beside:
        topics = beside.submit(awaited, cluster.metadata, endpoint.note_away).result().topics
    endpoint.note_back()
    return names.commands(names.definer(config.lapse.app_id)) in topics


def _once_there(topic: DefinitionsTopic, away: Callable[[str], None]) -> Contents | None:
    """Read the definitions once a broker leads their topic: a worker knows nothing to serve before (C52, Q23).

    A broker that has just come back may tell for a moment that the topic is empty. A change under way is waited for,
    but not long: what is committed counts, and the worker follows the rest.
    """
    from lapse.runtime.topics.definitions_reader import DefinitionsAway

    believes_from, waited_until = time.monotonic(), time.monotonic() + _OPEN_S
    while True:
        try:
            there = topic.read_if_there()
            now = time.monotonic()
            if ((there and there.found) or now >= believes_from) and (topic.open_from is None or now >= waited_until):
                return there
        except DefinitionsAway as error:
            away(str(error))
            believes_from = time.monotonic() + _EMPTY_S
        time.sleep(_AGAIN_S)


def serve(
    config: Config,
    log_level: str,
    log_format: Format = "text",
    decided: DecidedEntities | None = None,
    endpoint: Endpoint | None = None,
) -> None:
    """Run a worker in this process until it is stopped. While no broker answers, wait for one.

    Args:
        config: the configuration to serve.
        log_level: the lowest level to log.
        log_format: the format of the log.
        decided: the definitions behind the configuration, whose changes it follows; None = from a file alone.
        endpoint: the HTTP endpoint; None = open one.
    """
    from lapse.config import ConfigError
    from lapse.protocol import topic as names
    from lapse.runtime.topics import topic_settings  # noqa: F401  # else both threads below import aiokafka at once
    from lapse.runtime.topics.cluster import Cluster, awaited
    from lapse.runtime.topics.topology import TopologyError

    endpoint = endpoint or _opened(config, log_level, log_format)
    cluster = Cluster(config)
    with ThreadPoolExecutor(1) as beside:  # import the rest while the brokers answer
        looked = beside.submit(
            awaited, lambda patience_s: cluster.topology(served=True, patience_s=patience_s), endpoint.note_away
        )
        from lapse.runtime import worker_log
        from lapse.runtime.kafka.lean_faust import import_faust

        import_faust()
        from lapse.runtime.assembly import make_app
    try:
        topology = looked.result()
        endpoint.note_back()
        if decided is None and (defined := names.definitions(config.lapse.app_id)) in topology.existing:
            raise TopologyError(
                f"{defined} defines what the entities of {config.lapse.app_id} are, for all workers. A worker with "
                'definitions = "file" may disagree with others: take that line out of lapse.toml, or delete the topic'
            )
        app = make_app(config, topology, decided)
    except (ConfigError, TopologyError) as error:
        raise click.ClickException(str(error)) from error
    app.metrics.endpoint = endpoint
    _run_until_stopped(app, log_level, worker_log.settings(log_level, log_format), config.lapse.data_dir)


def _run_until_stopped(app: LapseApp, log_level: str, logging_config: dict[str, Any], data_dir: str) -> NoReturn:
    """Run an application of Faust in this process, which ends with it."""
    import uvloop

    from lapse.runtime.kafka.worker_process import WorkerProcess

    uvloop.install()
    os.environ.setdefault("F_DATADIR", data_dir)
    logging.getLogger("lapse").setLevel(log_level.upper())
    gc.freeze()  # collecting the 2,000 garbage objects of imports takes longer than a fetch
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    gc.enable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)

    code = 0
    with bounded_end(_ENDING_S, logging.getLogger("lapse.worker"), "the worker", _NOTHING_LOST) as begin_end:
        options = {"loglevel": log_level, "logging_config": logging_config, "quiet": True, "redirect_stdouts": False}
        running = WorkerProcess(app, begin_end, **options)
        try:
            running.execute_from_commandline()
        except SystemExit as end:
            # Faust exits with 1 after a crash. With CRASHED, a supervisor starts the worker again.
            code = CRASHED if end.code == 1 or isinstance(end.code, str) else end.code or 0
        except Exception:
            logging.getLogger("lapse").critical("lapse worker ends: Faust crashed", exc_info=True)
            code = CRASHED
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)  # a normal exit would wait for threads that wait for a broker

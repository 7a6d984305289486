"""Every block of commands that a page shows is run, here or by the test that is named here.

The tutorials are followed by `test_tutorials.py`. A block that a page gets is run here as it stands, line by line on a
broker with a worker, unless `ELSEWHERE` says where it is run, or why it cannot be run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import pytest
from click.testing import CliRunner

from lapse.cli import main
from lapse.embedded import EmbeddedKafka
from lapse_client import Admin, CommandFailed, Connection, Publisher, Queue, QueueSubscriber, SowClient
from support.consumers import kcat_stand_in
from support.kafka.log import until
from support.pages.page_run import commands, fits
from support.pages.shown_command import examples, words_of_commands
from support.processes.worker import Worker

ROOT: Final = Path(__file__).parents[2]

PROGRAMS: Final = (
    "B= G= OTEL_ celery curl docker echo export git helm kcat keytool kubectl lapse make pip python queue= source sudo "
    "systemctl"
).split()
"""How a line of a shell begins; all else is no command."""

ELSEWHERE: Final = {
    "README.md": "tests/acceptance/test_tutorials.py",
    "CONTRIBUTING.md: make": "these are the runs of the tests themselves",
    "tests/README.md: make": "these are the runs of the tests themselves",
    "docs/benchmarks.md: make": "measurements on a quiet machine",
    "docs/benchmarks.md: python -m benchmarks": "measurements on a quiet machine",
    "docs/celery.md: celery -A shop": "tests/integration/client/test_kombu.py",
    "docs/celery.md: pip": "tests/unit/test_packaging.py",
    "docs/demo.md: make": "tests/acceptance/test_demo.py",
    "docs/deployment.md: docker": "needs Docker",
    "docs/deployment.md: helm install": "tests/unit/deploy/test_helm.py",  # as `helm template`, without a cluster
    "docs/deployment.md: helm template": "tests/unit/deploy/test_helm.py",
    "docs/deployment.md: kubectl": "tests/unit/deploy/test_helm.py",  # the names; that needs a cluster
    "docs/deployment.md: python3 -m venv": "tests/unit/deploy/test_systemd.py",
    "docs/figures.md: make": "measurements on a quiet machine",
    "docs/gateway.md: G=": "tests/integration/gateway/test_gateway_process.py",
    "docs/gateway.md: lapse gateway --deployment": "tests/integration/gateway/test_console_deployments.py",
    "docs/gateway.md: pip": "tests/unit/test_packaging.py",
    "docs/gateway.md: queue=": "tests/integration/gateway/test_gateway_process.py",
    "docs/index.md: make": "`make check` builds the site",
    "docs/lifetimes.md: lapse publish": "tests/acceptance/test_documented_commands.py",
    "docs/operations.md: curl": "tests/integration/worker/test_metrics.py",
    "docs/operations.md: docker": "needs Docker",
    "docs/operations.md: pip": "tests/unit/test_packaging.py",
    "docs/operations.md: source": "tests/unit/cli/test_completion.py",
    "docs/protocol.md: echo": "tests/integration/client/test_shell_consumer.py",
    "docs/queues.md: lapse transfer orders --to backup:9092 --all": "tests/integration/clusters/test_transfer.py",
    "docs/queues.md: lapse transfer orders --to backup:9092 --follow": "tests/integration/clusters/test_follow.py",
    "docs/security.md: B=": "tests/unit/protocol/test_signature.py",
    "docs/recipes/fastapi.md: pip": "tests/integration/client/test_fastapi_example.py",
    "docs/security.md: keytool": "tests/integration/security/test_secured_recipe.py",
    "docs/simulate.md: lapse simulate orders --arrivals": "tests/unit/cli/test_simulate.py",
    "docs/simulate.md: lapse simulate orders --replay": "tests/integration/commands/test_simulate.py",
    "docs/sow.md: lapse publish": "tests/acceptance/test_documented_commands.py",
    "docs/sow.md: lapse replicate": "tests/integration/clusters/test_replicate.py",
    "docs/spark.md: lapse spark alerts": "tests/integration/spark/test_spark_monitor.py",
    "docs/spark.md: lapse spark archive": "tests/integration/spark/test_spark_monitor.py",
    "docs/spark.md: lapse spark compact": "tests/integration/spark/test_spark_monitor.py",
    "docs/spark.md: lapse spark ledger --follow": "tests/integration/spark/test_spark_running_ledger.py",
    "docs/spark.md: lapse spark ledger --queue": "tests/integration/spark/test_spark_ledger.py",
    "docs/spark.md: lapse spark lives": "tests/integration/spark/test_spark_ledger.py",
    "docs/spark.md: lapse spark monitor": "tests/integration/spark/test_spark_monitor.py",
    "docs/spark.md: lapse spark redrive": "tests/integration/spark/test_spark_redrive.py",
    "docs/spark.md: lapse spark report": "tests/integration/spark/test_spark_monitor.py",
    "docs/spark.md: lapse spark state": "tests/integration/spark/test_spark_state.py",
    "docs/testing-your-consumers.md: pip": "tests/unit/test_packaging.py",
    "docs/testing.md: make": "these are the runs of the tests themselves",
    "docs/tracing.md: pip": "tests/integration/client/test_tracing.py",
}
"""Blocks that are not run here, by page and how they begin: the test that runs them, or why they cannot be run."""


def blocks() -> Iterator[tuple[str, str]]:
    """Every block of commands, behind its page."""
    paths = [*ROOT.glob("*.md"), ROOT / "tests/README.md", *(ROOT / "docs").glob("*.md")]
    for path in sorted([*paths, *(ROOT / "docs/recipes").glob("*.md")]):
        page = path.relative_to(ROOT).as_posix()
        if page in ("docs/commands.md", "CHANGELOG.md"):  # usages that are printed from the commands; what has changed
            continue
        for block in examples(path.read_text("utf-8")):
            if block.removeprefix("$ ").startswith(tuple(PROGRAMS)) and not re.match(r"lapse(\.|-| +=)", block):
                yield page, block


def elsewhere(page: str, block: str) -> str | None:
    """How a block that is not run here is called in the table."""
    return next((name for name in ELSEWHERE if f"{page}: {block.removeprefix('$ ')}".startswith(name)), None)


HERE: Final = [pytest.param(*one, id=f"{one[0]}: {one[1].splitlines()[0]}") for one in blocks() if not elsewhere(*one)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Where the commands run: beside the file of a deployment, with a worker and a broker of its own."""
    directory = tmp_path_factory.mktemp("shown")
    entities = 'definitions = "topic"\n[queue.first]\n'
    with EmbeddedKafka() as kafka, Worker(directory, kafka.bootstrap_servers, "lapse", entities):
        with (directory / "lapse.toml").open("a") as file:
            file.write('[queue.orders]\nexpiration = "enabled"\nmax_deliveries = 1\n')  # as `simulate` needs it
        programs = directory / "bin"
        programs.mkdir()
        begin = {"lapse": "-m lapse", **({} if shutil.which("kcat") else {"kcat": kcat_stand_in.__file__})}
        for name, how in begin.items():
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {how} "$@"\n')
            (programs / name).chmod(0o755)
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(directory):
            patch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
            patch.setenv("BROKER", kafka.bootstrap_servers)
            patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
            patch.setenv("COLUMNS", "200")
            with Stage(Connection.from_environment()) as stage:
                yield stage


@pytest.mark.slow
@pytest.mark.parametrize(("page", "block"), HERE)
def test_a_block_of_commands_runs_as_it_stands(stage: Stage, page: str, block: str) -> None:
    connection = Connection.from_environment()
    # A day in the past, whenever this runs, and the broker of the test.
    yesterday = f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    block = block.replace("2026-01-31", yesterday).replace("localhost:9092", connection.bootstrap_servers)
    if block.startswith("$ lapse "):  # with what each command prints
        for command, shown in commands(block):
            printed = run(stage, page, command)
            assert fits(shown, printed), f"$ {command}\n--- shown\n{shown}\n--- printed\n{printed}"
    elif all(line.startswith("lapse ") for line in block.splitlines()):
        for line in block.splitlines():
            run(stage, page, line)
    else:
        stage.before(page, block)
        ran = subprocess.run(["bash", "-e", "-c", block], capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode == 0, f"{block}\n{ran.stdout}{ran.stderr}"
        assert ran.stdout.strip(), block


def run(stage: Stage, page: str, line: str) -> str:
    """Run a command of lapse; returns what it prints."""
    (words,) = words_of_commands(line)
    stage.before(page, line)
    done = CliRunner().invoke(main, words[1:], input="y\n", catch_exceptions=False, prog_name="lapse")
    assert done.exit_code == 0, f"$ {line}\n{done.stdout}{done.stderr}"
    return done.stdout


class Stage:
    """What a page takes for granted: queues with live and dead messages, a SOW topic, somebody who replies."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._filled = False
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._admin = self._stack.enter_context(Admin(connection=self._connection))
        return self

    def __exit__(self, *_: object) -> None:
        """Nobody replies any more."""
        self._stack.close()

    def before(self, page: str, line: str) -> None:
        """See that there is what a line is about."""
        if page == "docs/entities-at-run-time.md":  # it makes its entities itself
            return
        if " prices" in line or ".prices." in line:
            self._admin.create_sow_topic("prices", key="/symbol")
            if "delete-topic" not in line or "--force" in line:
                self._publish("prices", {"symbol": "A", "price": 200})
            else:
                with SowClient("prices", connection=self._connection) as prices:
                    prices.delete(filter="TRUE")
        elif " quotes" in line:
            self._reply()
        elif " orders" in line or line == "lapse doctor":
            until(self._has_orders, "a queue orders, behind the definition of one that was deleted")
            if "delete" in line:
                with Queue("orders", connection=self._connection) as orders:
                    orders.purge()
                self._filled = False
            if not self._filled and ("delete" not in line or "--force" in line):
                self._fill()

    def _has_orders(self) -> bool:
        try:
            self._admin.create_queue("orders", expiration="enabled", max_deliveries=1)
        except CommandFailed as error:
            if error.code != "exists":
                raise
            return False
        return True

    def _fill(self) -> None:
        """Six messages of which two are done, two are dead, and two wait."""
        self._filled = True
        self._publish("orders", *({"id": number, "price": 200} for number in range(4)))
        with QueueSubscriber("orders", connection=self._connection, max_backlog=4) as subscriber:
            for _ in range(2):
                subscriber.receive(20).acknowledge()
                subscriber.receive(20).cancel()
        self._publish("orders", *({"id": number, "price": 200} for number in (4, 5)))
        with Queue("orders", connection=self._connection) as orders:
            until(lambda: orders.depth()["available"] == 2, "two that wait")

    def _publish(self, topic: str, *values: dict[str, Any]) -> None:
        with Publisher(self._connection) as publisher:
            for value in values:
                publisher.publish(topic, json.dumps(value))

    def _reply(self) -> None:
        """Reply to requests, as the page does, until the end."""
        for name in ("quotes", "my.replies"):
            self._admin.create_queue(name, expiration="enabled")
        subscriber = self._stack.enter_context(QueueSubscriber("quotes", connection=self._connection, max_backlog=10))
        replying = threading.Thread(target=subscriber.run, args=(lambda request: request.reply(b'{"price": 7}'),))
        replying.start()
        self._stack.callback(replying.join)
        self._stack.callback(subscriber.stop)


def test_the_table_names_what_is_there() -> None:
    """No line of it is left over, and the test that it names has the command's last word."""
    shown = {elsewhere(*one): one[1].removeprefix("$ ") for one in blocks()}
    assert set(ELSEWHERE) <= shown.keys()
    for name, where in ELSEWHERE.items():
        if where.startswith("tests/"):
            text = (ROOT / where).read_text("utf-8")
            found = re.match(r"lapse (?:spark )?(\w+)", shown[name])
            page = Path(name.split(":")[0]).name
            assert found is None or found[1] in text or page in text, (name, where)
    assert len(HERE) >= 8

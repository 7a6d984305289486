"""Runs kombu's own tests on lapse's transport, and compares what fails with `EXPECTED` (X3).

    .venv/bin/python tests/kombu_tests.py

It downloads the source distribution of the installed version of kombu, which has the tests, and starts a broker and a
worker. Where another test fails, or one that is expected to fail passes, the exit code is 1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

INTEGRATION: Final = "t/integration/test_lapse.py"
SIMPLE: Final = "t/unit/test_simple.py"
PIDBOX: Final = "t/unit/test_pidbox.py"
MEMORY: Final = "t/unit/transport/test_memory.py"
BASE: Final = "t/unit/transport/virtual/test_base.py"

FILES: Final = (INTEGRATION, SIMPLE, PIDBOX, MEMORY, BASE)

_PLUGIN: Final = "support.programs.kombu_plugin"
_KINDS: Final = ("Basic", "ExchangeTypes", "TimeToLive", "Priority", "Failover", "Message", "EventLoop")

_LATE: Final = "looks into a mailbox that was declared after the command was sent; such a command is not kept"
_DELETED: Final = "kombu deletes a mailbox once a reply was collected; the next reply comes before it is declared again"
_LEFT: Final = "probably meets what the test before it has left unsettled in queues of the same names"
_FIELDS: Final = "uses fields of the memory transport"
_BESIDE: Final = "gets from a queue beside a consumer"
_POLLING: Final = "replaces a part of kombu's polling loop, which this transport does not use"

EXPECTED: Final[Mapping[str, Mapping[str, str]]] = {
    SIMPLE: {"test_SimpleQueue::test_get_accept": _LEFT},
    PIDBOX: {
        **dict.fromkeys(("test_Mailbox::test_cast", "test_Mailbox::test_abcast"), _LATE),
        "test_Mailbox::test_reply__collect": _DELETED,
    },
    MEMORY: {
        "test_MemoryTransport::test_queue_for": _FIELDS,
        "test_MemoryTransport::test_drain_events_unregistered_queue": _BESIDE,
        "test_MemoryTransport::test_produce_consume": _BESIDE,
    },
    BASE: dict.fromkeys(
        (
            "test_QoS::test_restore_unacked_once_dumps_message_body[None]",
            "test_QoS::test_restore_unacked_once_dumps_message_body[gzip]",
            "test_Channel::test_basic_publish__get__consume__restore",
            "test_Channel::test_restore_unacked_raises_BaseException",
            "test_Channel::test_restore_unacked_ignores_raised_exceptions_when_acked",
            "test_Channel::test_restore_unacked_once_when_unrestored[True]",
            "test_Channel::test_restore_unacked_once_when_unrestored[False]",
            "test_Channel::test_drain_events_has_get_many",
            "test_Channel::test_basic_cancel",
            "test_Channel::test_basic_cancel_not_in_active_queues",
        ),
        _POLLING,
    ),
}
"""Which tests fail, by file: the test's name, and why."""


def classes() -> str:
    """The module that runs the classes of `t/integration/common.py`, as kombu's own modules for brokers do."""
    names = [
        f"{'' if kind == 'Basic' else 'Base'}{kind}{'Functionality' if kind == 'Basic' else ''}" for kind in _KINDS
    ]
    tests = "".join(f"class Test{name}({name}):\n    pass\n\n\n" for name in names)
    return f"from .common import {', '.join(names)}\n\n\n{tests}"


def fetched(place: Path) -> Path:
    """Download kombu's source distribution, and unpack it.

    Raises:
        CalledProcessError: pip could not get it.
    """
    wanted = f"kombu=={version('kombu')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-binary", "kombu", wanted, "--dest", place], check=True)
    (archive,) = place.glob("kombu-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    source = archive.with_name(archive.name.removesuffix(".tar.gz"))
    (source / INTEGRATION).write_text(classes(), "utf-8")
    return source


def results(source: Path, servers: str, deployment: str) -> dict[str, str]:
    """Run the tests; return how each of them ended."""
    results_file = source.with_name("results.json")
    ini = source.with_name("pytest.ini")
    ini.write_text("[pytest]\naddopts = -p no:cacheprovider\npython_classes = test_* Test*\n", "utf-8")
    root = Path(__file__).parents[1]
    its = {"ADDRESS": servers, "DEPLOYMENT": deployment, "RESULTS": str(results_file)}
    environment = os.environ | {f"KOMBU_{name}": value for name, value in its.items()}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (root / "tests", source)))
    command = [sys.executable, "-m", "pytest", "-c", ini, "--rootdir", source, "-p", _PLUGIN, "--timeout", "120", "-q"]
    subprocess.run([*command, "--import-mode=importlib", "-W", "ignore", *FILES], cwd=source, env=environment)
    found: dict[str, str] = json.loads(results_file.read_text("utf-8"))
    return found


def differences(found: Mapping[str, str]) -> list[str]:
    """What is not as `EXPECTED` says."""
    expected = {f"{file}::{name}": why for file, names in EXPECTED.items() for name, why in names.items()}
    failed = {name for name, outcome in found.items() if outcome == "failed"}
    return [f"{name} fails" for name in sorted(failed - expected.keys())] + [
        f"{name} does not fail, though it {why}" for name, why in expected.items() if name not in failed
    ]


def main() -> int:
    """Run all, and print what the page says of each file; return the exit code."""
    from lapse.embedded import EmbeddedKafka
    from support.processes.worker import Worker

    with tempfile.TemporaryDirectory(prefix="kombu-tests-") as name:
        place = Path(name)
        source = fetched(place)
        entities = 'definitions = "topic"\n[queue.plain]\n'
        with EmbeddedKafka() as kafka, Worker(place, kafka.bootstrap_servers, "lapse", entities):
            found = results(source, kafka.bootstrap_servers, "lapse")
    counts = Counter((name.split("::")[0], outcome) for name, outcome in found.items())
    for file in FILES:
        every = sum(count for (where, _), count in counts.items() if where == file)
        print(f"{file}: {counts[file, 'passed']} of {every} pass")
    differs = differences(found)
    print("\n".join(differs))
    return int(bool(differs))


if __name__ == "__main__":
    sys.exit(main())

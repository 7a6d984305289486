"""A worker imports no web client and no YAML, which take a quarter of the CPU, and lapse's own classes of Kafka."""

import subprocess
import sys

import pytest

_STARTS = """
import sys
from lapse.runtime.kafka.lean_faust import import_faust

import_faust()
from lapse.config import loads
from lapse.runtime.application import LapseApp
from lapse.runtime.kafka.faust_settings import faust_settings

assert LapseApp("a", **faust_settings(loads("[queue.orders]"))).conf.broker
assert not [name for name in sys.modules if name.split(".")[0] in ("aiohttp", "yaml")]
"""

_ASKS = """
import faust
from aiohttp.client import ClientSession

import yaml

assert faust.App("a", broker="kafka://nowhere").conf.HttpClient is ClientSession
assert yaml.safe_load("1") == 1
"""


_REPLACES = """
import aiokafka.conn
from aiokafka.consumer import consumer

for kind in (consumer.Fetcher, consumer.GroupCoordinator, aiokafka.conn.AIOKafkaConnection):
    assert kind.__module__.startswith("lapse."), kind
"""
"""Modules do that when they are imported, and nothing else names some of them."""


@pytest.mark.parametrize(
    "after", ["", _ASKS, _REPLACES], ids=["not imported", "still there for others", "with lapse's own classes"]
)
@pytest.mark.slow
def test_a_worker_imports_no_web_client(after: str) -> None:
    done = subprocess.run([sys.executable, "-c", _STARTS + after], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.slow
def test_what_is_imported_already_stays() -> None:
    program = (
        "import aiohttp, sys\n" + _STARTS.split("\n\n")[0] + "\nimport_faust()\nassert aiohttp.client.ClientSession"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


_LOOKS = """
import sys
from pathlib import Path

import click
from lapse.cli import worker
from lapse.config import loads
from lapse.runtime.topics import cluster


def look(self, **_):
    print("aiokafka.abc" in sys.modules)
    raise cluster.TopologyError("seen")


cluster.Cluster.topology = look
try:
    worker.serve(loads("[queue.orders]"), "error")
except click.ClickException as error:
    assert error.message == "seen"
"""


@pytest.mark.feature("C52")
@pytest.mark.slow
def test_no_other_thread_imports_what_the_main_one_imports() -> None:
    """With 200 topics and more, both imported aiokafka at once. One found half of it, and the worker ended."""
    done = subprocess.run([sys.executable, "-c", _LOOKS], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert done.stdout == "True\n"

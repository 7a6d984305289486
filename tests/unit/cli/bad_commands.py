"""Commands that are refused before anything is asked of Kafka: cases of test_bad_commands.py and docs/bad-input.md."""

from __future__ import annotations

import os
import shlex
from typing import Final, NamedTuple
from unittest import mock

from click.testing import CliRunner

from lapse.cli import main
from lapse.config.document import ConfigError, loads


class Case(NamedTuple):
    """A command that is refused.

    Attributes:
        line: what was typed, without `lapse`.
    """

    line: str

    @property
    def shown(self) -> str:
        """The command, as the page shows it."""
        return f"`{self.line}`"

    @property
    def told(self) -> str:
        """What is told."""
        with CliRunner().isolated_filesystem(), mock.patch.dict(os.environ, {"KAFKA_BOOTSTRAP_SERVERS": "localhost:1"}):
            done = CliRunner().invoke(main, shlex.split(self.line))
        assert done.exit_code in (1, 2), done.output
        return done.output.split("Error: ", 1)[1].strip()


class Key(NamedTuple):
    """Settings of a queue that are refused, or whole tables.

    Attributes:
        settings: as `lapse.toml` has them.
    """

    settings: str

    @property
    def shown(self) -> str:
        """The settings, as the page shows them."""
        return f"`{'`, `'.join(self.settings.splitlines())}`"

    @property
    def told(self) -> str:
        """What is told, without the line."""
        try:
            loads(self.settings if self.settings.startswith("[") else f"[queue.orders]\n{self.settings}")
        except ConfigError as error:
            return str(error).split(": ", 1)[1]
        return ""


COMMANDS: Final = [
    Case(line)
    for line in (
        "queue rewind orders --to soon",
        "queue rewind orders --to orders:x:1",
        "queue rewind orders --to end",
        "queue rewind orders --to beginning --lifetimes old",
        "transfer orders",
        "transfer orders --all",
        "transfer orders --to there:9092 --all --bookmark orders:0:1",
        "transfer orders --to there:9092 --follow --resume t-1",
        "transfer orders --to there:9092 --bookmark orders:0",
        "transfer orders --to there:9092 --filter '/price >'",
        "transfer orders --to there:9092 --all --to-queue 'a b'",
        "transfer orders --to there:9092 --all --max-clock-skew 1s",
        "transfer orders --to there:9092 --follow --max-clock-skew soon",
        "transfer orders --to there:9092 --follow --dry-run",
        "queue create orders lease_period",
        "queue alter orders",
        "queue alter orders lease_period=5s --version new",
        "sow alter prices",
        "sow create prices key",
        "simulate orders",
        "simulate orders --replay --recorded",
        "simulate orders --recorded --arrivals 5/s",
        "simulate orders --arrivals 5/s --since 2h",
        "simulate orders --replay --subscribers 3",
        "simulate orders --recorded --messages 5",
        "simulate orders --arrivals 5/s --subscribers 2,many",
        "simulate orders --arrivals 5/s --cancel 200%",
        "simulate orders --arrivals 5/s --for soon",
        "simulate orders --arrivals 5/s --messages 0",
        "simulate orders --recorded --since never",
        "simulate orders --arrivals 5/s --page nowhere/page.html",
        "replicate --to there:9092",
        "replicate",
    )
]
KEYS: Final = [
    Key(settings)
    for settings in (
        'retry = "1s"',
        'retry = { delay = "soon" }',
        "retry = { factor = 2 }",
        'retry = { delay = "1s", factor = 0.5 }',
        'retry = { delay = "1s", jitter = 2 }',
        'retry = { delay = "1s", max_delay = "10ms" }',
        'retry = { delay = "1s", on = ["never"] }',
        'retry = { delay = "1s", on = [] }',
        'retry = { delay = "1s", tries = 3 }',
        "group_limit = 2",
        'group_limit = 0\ngroup_by = "/a"',
        'group_rate = "10"\ngroup_by = "/a"',
        'rate = "0/1s"',
        'rate = "10/0s"',
        'rate = "10/1s"\npartitions = 2',
        'rate = "10/1s"\ntarget_queue_depth = 5',
        "group_weight = { a = 2 }",
        'group_weight = { a = 0 }\ngroup_by = "/a"',
        'group_by = "/a"\ngroup_limit = 2\ntarget_queue_depth = 5',
        'recovery_point = "middle"',
        'auto_delete_on_idle = "1m"',
        '[lapse]\ndefinitions = "both"',
        '[topic.orders]\nexpiration = "soon"',
        '[topic.orders]\nexpiration = "5s"',
        '[users.a]\nkey_file = "a.key"\n[users.a.entitlements.orders]\ndefine = true',
    )
]

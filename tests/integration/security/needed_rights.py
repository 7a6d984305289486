"""What each command must be allowed to do on the cluster, and how it is called: the rows of test_rights.py (X5, X7)."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import click
import pytest
from _pytest.mark import ParameterSet
from confluent_kafka.admin import AclOperation, ResourceType

from lapse.cli import main

READ, WRITE, SEE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE
TRANSACTION = ResourceType.TRANSACTIONAL_ID


class Need(NamedTuple):
    """A right without which a command is refused.

    Attributes:
        operation: what must be allowed.
        name: of the topic, or the transactional id. `{q}`, `{s}`, `{new}` and `{app}` are those of the test.
        kind: of what has this name.
        told: what the refusal names; empty = the name.
    """

    operation: AclOperation
    name: str
    kind: ResourceType = ResourceType.TOPIC
    message: str = ""


class Row(NamedTuple):
    """A command and its needs.

    Attributes:
        arguments: what it is given, `{…}` as above; `{other}` is another cluster.
        needs: each of them is taken away once.
        why_none: if there are none.
    """

    arguments: str = ""
    needs: tuple[Need, ...] = ()
    why_none: str = ""


_DEFINITIONS: Final = "lapse.definitions.{app}"
_REDRIVEN: Final = "lapse.redriven"
_LETTERS: Final = Need(READ, "dlq.{q}")


def _client(name: str) -> tuple[Need, ...]:
    commands, deliveries = f"lapse.{name}.commands", f"lapse.{name}.deliveries"
    return Need(SEE, commands), Need(WRITE, commands), Need(SEE, deliveries), Need(READ, deliveries)


def _defining() -> tuple[Need, ...]:
    return (
        Need(SEE, _DEFINITIONS),
        Need(READ, _DEFINITIONS),
        Need(WRITE, _DEFINITIONS),
        Need(WRITE, _DEFINITIONS, TRANSACTION),
    )


_QUEUE: Final = _client("{q}")
_SOW: Final = _client("{s}")
_EVERY: Final = Need(CREATE, "*", message="{new}")

ROWS: Final = {
    "apply": Row("--yes", (Need(SEE, _DEFINITIONS), Need(READ, _DEFINITIONS))),
    "check": Row("", (Need(READ, "{q}"), Need(SEE, "lapse.{q}.commands"))),
    "definitions": Row("", (Need(SEE, _DEFINITIONS), Need(READ, _DEFINITIONS))),
    "demo": Row(why_none="it makes all its topics, as its own administrator"),
    "dev": Row("--console-port 0", (Need(SEE, _DEFINITIONS), Need(READ, _DEFINITIONS))),
    "dlq ls": Row("dlq.{q}", (Need(SEE, "dlq.{q}"), _LETTERS)),
    "dlq purge": Row(
        "dlq.{s} --until 2100-01-01T00:00:00Z --yes", (Need(READ, "dlq.{s}"), Need(AclOperation.DELETE, "dlq.{s}"))
    ),
    "dlq redrive": Row(
        "dlq.{q} --to {q} --again --yes",
        (
            _LETTERS,
            Need(SEE, _REDRIVEN),
            Need(READ, _REDRIVEN),
            Need(WRITE, _REDRIVEN),
            Need(WRITE, f"{_REDRIVEN}.dlq.{{q}}", TRANSACTION, _REDRIVEN),
            Need(WRITE, "{q}"),
        ),
    ),
    "dlq show": Row("dlq.{q}", (Need(SEE, "dlq.{q}"), _LETTERS)),
    "doctor": Row("", (Need(READ, "{q}"),)),
    "explain": Row("{q}:0:0", (Need(SEE, "{q}"), Need(READ, "{q}"))),
    "gateway": Row(why_none="it shows what its user may see, and else answers as if nothing were there"),
    "publish": Row("{q} x", (Need(SEE, "{q}"), Need(WRITE, "{q}"))),
    "queue ack": Row("{q} {q}:0:0", _QUEUE),
    "queue alter": Row("{q} expiration=7m", _defining()),
    "queue cancel": Row("{q} {q}:0:0", _QUEUE),
    "queue create": Row("{new}", (_EVERY, *_defining())),
    "queue delete": Row("{q} --force --yes", _QUEUE),
    "queue depth": Row("{q}", _QUEUE),
    "queue expire": Row("{q} {q}:0:0", _QUEUE),
    "queue partitions": Row("{q}", (Need(SEE, _DEFINITIONS), Need(READ, _DEFINITIONS))),
    "queue pause": Row("{q}", _QUEUE),
    "queue peek": Row("{q}", _QUEUE),
    "queue purge": Row("{q} --yes", _QUEUE),
    "queue resume": Row("{q}", _QUEUE),
    "queue rewind": Row("{q} --to beginning", _QUEUE),
    "queue subscribe": Row("{q} --count 1", _QUEUE),
    "queue subscriptions": Row("{q}", _QUEUE),
    "replicate": Row(
        "--to {other} --topic {s}",
        (Need(SEE, "lapse.sow.{s}"), Need(READ, "lapse.sow.{s}")),
    ),
    "simulate": Row(
        "{q} --replay",
        tuple(
            Need(operation, name)
            for operation in (SEE, READ)
            for name in ("{q}", "lapse.{q}.commands", "lapse.events.{q}", "{app}-{q}-changelog", _DEFINITIONS)
        ),
    ),
    "sow alter": Row("{s} expiration=7m", _defining()),
    "sow create": Row("{new}-too", (_EVERY, *_defining())),
    "sow delete": Row("{s} -k k", _SOW),
    "sow delete-topic": Row("{s} --force --yes", _SOW),
    "sow follow": Row("{s} --timeout 1", _SOW),
    "sow query": Row("{s}", _SOW),
    "sow scheduled": Row("{s}", _SOW),
    "sow subscriptions": Row("{s}", _SOW),
    "sow withdraw": Row("{s} -f TRUE", _SOW),
    "spark alerts": Row(". --topic {q}", (Need(SEE, "{q}"), Need(WRITE, "{q}"))),
    "spark archive": Row("out", (Need(READ, "dlq.{q}"),)),
    "spark ledger": Row(
        "--queue {q} --topics {q}",
        (Need(SEE, "lapse.events.{q}"), Need(READ, "lapse.events.{q}"), Need(READ, "{q}"), _LETTERS),
    ),
    "spark lives": Row(
        "--entity {q} --bookmark {q}:0:0", (Need(SEE, "lapse.events.{q}"), Need(READ, "lapse.events.{q}"))
    ),
    "spark monitor": Row("out", (_LETTERS,)),
    "spark redrive": Row(
        "out --to {q} --send",
        (
            _LETTERS,
            Need(SEE, "{q}"),
            Need(WRITE, "{q}"),
            Need(READ, _REDRIVEN),
            Need(WRITE, _REDRIVEN),
            Need(WRITE, f"{_REDRIVEN}.dlq.{{s}}", TRANSACTION, _REDRIVEN),
        ),
    ),
    "spark report": Row(why_none="it reads directories"),
    "spark state": Row(
        "--entity {q} --at 2020-01-01T00:00:00Z", (Need(SEE, "{app}-{q}-changelog"), Need(READ, "{app}-{q}-changelog"))
    ),
    "top": Row("{q} --json", _QUEUE),
    "transfer": Row("{q} --all --to {other}", _QUEUE),
    "worker": Row(why_none="the other tests here take its rights away"),
}
"""Every command that speaks to a cluster."""


def _tried(*, first: bool, of_client: bool) -> list[ParameterSet]:
    return [
        pytest.param(name, need, id=f"{name}, {need.operation.name} {need.kind.name} {need.name}")
        for number, (name, row) in enumerate(ROWS.items())
        for at, need in enumerate(row.needs)
        if (number % len(row.needs) == at) is first and (row.needs in (_QUEUE, _SOW)) is of_client
    ]


ALWAYS: Final = [*_tried(first=True, of_client=False), *_tried(first=True, of_client=True)]
"""One right of each command. Of commands with the same needs each is without another one."""

LONG: Final = _tried(first=False, of_client=False)
"""The other rights of commands with needs of their own."""

AT_LENGTH: Final = _tried(first=False, of_client=True)
"""The other rights of a client, once more for each of its commands."""

_OPTIONS: Final = {"--config", "--bootstrap-servers", "--bootstrap"}


def commands() -> Iterator[str]:
    """Every command that says where the cluster is, and those that find it in the environment."""

    def below(command: click.Command, context: click.Context, path: tuple[str, ...]) -> Iterator[str]:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from below(found, click.Context(found, context, name), (*path, name))
        elif path in (("demo",), ("spark", "report")) or _OPTIONS & {
            one for parameter in command.params for one in parameter.opts
        }:
            yield " ".join(path)

    return below(main, click.Context(main), ())

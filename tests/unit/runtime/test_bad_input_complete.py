"""Every key, header, command and option has a refusal in the corpus, or the reason why it has none (X7)."""

import re
from collections.abc import Iterator, Mapping

import click
import orjson
import pytest
from pydantic import BaseModel

from lapse.cli import main
from lapse.config import QueueConfig, SowConfig
from lapse.config.entity_config import EntityConfig
from lapse.config.retry import RetryConfig
from lapse.config.root import Config, SecurityConfig, WorkerConfig
from lapse.config.topic import TopicConfig
from lapse.config.user import EntitlementConfig, UserConfig
from lapse.protocol import header, schema
from lapse.protocol.command import DEFINITION_COMMANDS, QUEUE_COMMANDS, SOW_COMMANDS
from unit.cli.bad_commands import COMMANDS, ELSEWHERE, KEYS
from unit.runtime.bad_input import CHAPTERS, response_to
from unit.simulation import bad_options
from unit.spark import bad_instants, bad_ledgers

pytestmark = pytest.mark.feature("X7")

TABLES: Mapping[str, tuple[type[BaseModel], set[str]]] = {
    "lapse": (WorkerConfig, set()),
    "security": (SecurityConfig, set()),
    "queue.orders": (QueueConfig, set()),
    "queue.orders.retry": (RetryConfig, set()),
    "sow.prices": (SowConfig, set(EntityConfig.model_fields)),
    "topic.orders": (TopicConfig, set()),
    "users.a": (UserConfig, set()),
    "users.a.entitlements.orders": (EntitlementConfig, set()),
}
"""By table of `lapse.toml`: its model, and the keys that another table's rows show."""

ANY_TEXT = {
    header.MESSAGE_ID: "any text is an id",
    header.ORIGINAL_MESSAGE_ID: "lapse writes it when it forwards; any text is an id",
    header.REPLY_TO: "the consumer's; a call to reply refuses what cannot be answered, among the requests",
    header.CORRELATION_ID: "any text is an id",
    header.REDRIVE_QUEUE: "a redrive writes it; any other queue leaves the record alone",
    header.REDRIVEN_COUNT: "a redrive writes it; what is no number counts as 0",
    header.TRANSFER: "a transfer writes it; the record stays invisible until the transfer is confirmed",
    header.TRANSFER_FROM: "a transfer writes it; any text names a place to which nothing goes back",
    header.TRANSFER_COUNTS: "a transfer writes it; what cannot be read counts as none",
}
"""Headers of published records that cannot be wrong, and why."""

SIGNING = {header.USER, header.SIGNED_AT_MS, header.SIGNATURE}
"""Headers of commands. Their refusals, which need users, are in runtime/authorization/test_command_authorizer.py."""

BY_LAPSE = {
    *header.DEAD_LETTER_NAMES - {header.EXPIRES_AT_MS, header.REDRIVEN_COUNT},
    *(header.KIND, header.SUBSCRIPTION, header.COMMAND_ID, header.EPOCH, header.SHARDS, header.BOOKMARK),
    *(header.LEASE_UNTIL_MS, header.DELIVERY_COUNT, header.TIMESTAMP_MS, header.LIFETIMES, header.OPERATION),
    *(header.UNWRITTEN, header.ORDER_VALUE, header.RECORD_KEY, header.FIRST_EXPIRES_AT_MS),
    *header.ORIGIN_NAMES,
}
"""Headers that only lapse writes: on deliveries, dead letters, its compacted topics, and updates that it replicates."""

NO_REFUSAL = {"tick": "workers write it; a client's is an unknown command"}
"""Commands without a refusal of their own, and why."""


@pytest.mark.parametrize("table", TABLES)
def test_every_key_has_a_refusal_at_its_place(table: str) -> None:
    model, elsewhere = TABLES[table]
    places = [key.message.partition(": ")[0] for key in KEYS]
    tried = {place.removeprefix(f"{table}.").partition(".")[0] for place in places if place.startswith(f"{table}.")}
    assert set(model.model_fields) - elsewhere - tried == set()


def test_every_table_is_among_them() -> None:
    tables = {name.partition(".")[0] for name in TABLES}
    assert tables == set(Config.model_fields)


def test_every_header_of_a_record_has_a_refusal_or_a_reason() -> None:
    written = {name for chapter in CHAPTERS for case in chapter.cases for one in case.given for name, _ in one.headers}
    values = vars(header).values()
    known = {one for one in values if isinstance(one, str) and one.startswith(("lapse-", "ce_", "reply", "corr"))}
    known -= {header.PREFIX}
    assert known - written - ANY_TEXT.keys() - SIGNING - BY_LAPSE == set()
    assert not written & (ANY_TEXT.keys() | BY_LAPSE), "a reason that holds no longer"


@pytest.mark.parametrize(
    ("title", "commands"),
    [
        ("Commands to a queue", QUEUE_COMMANDS),
        ("Commands to a SOW topic", SOW_COMMANDS),
        ("Commands to a deployment", DEFINITION_COMMANDS),
    ],
)
def test_every_command_has_a_refusal(title: str, commands: frozenset[str]) -> None:
    (chapter,) = [one for one in CHAPTERS if one.title == title]
    bodies = [case.given[-1].value or b"" for case in chapter.cases if (case.given[-1].value or b"").startswith(b"{")]
    asked = {orjson.loads(body).get("command") for body in bodies}
    if title == "Commands to a SOW topic":
        (filters,) = [one for one in CHAPTERS if one.title == "Filters"]
        asked |= {orjson.loads(case.given[-1].value or b"")["command"] for case in filters.cases}
    assert commands - asked - NO_REFUSAL.keys() == set()


def test_every_field_of_a_command_has_a_refusal_that_names_it() -> None:
    commands = [one for one in CHAPTERS if one.title.startswith("Commands to ")]
    texts = [response_to(chapter, case) for chapter in commands for case in chapter.cases]
    named = {name for text in texts for name in re.findall(r"\bfield (\w+)", text)}
    assert {field["name"] for field in orjson.loads(schema.text("command"))["fields"]} - named == set()


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the long names of all options that take a value."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from options(inner, context)
        return
    for one in command.params:
        if isinstance(one, click.Option) and not one.is_flag and not one.count:
            yield next(name for name in one.opts if name.startswith("--"))


def test_every_option_with_a_value_has_a_refusal_or_a_reason() -> None:
    lines = [
        *(case.line for case in COMMANDS),
        *(case.option for case in (*bad_options.CASES, *bad_options.GOALS)),
        *(case.shown for case in bad_instants.CASES),
        *(case.options for case in bad_ledgers.CASES),
    ]
    tried = {name for line in lines for name in re.findall(r"--[a-z-]+", line)}
    known = set(options(main, click.Context(main)))
    assert known - tried - ELSEWHERE.keys() == set()
    assert ELSEWHERE.keys() - known == set(), "there is no such option any more"
    assert ELSEWHERE.keys() & tried <= {"--from", "--id", "--key"}, "a reason that holds no longer"

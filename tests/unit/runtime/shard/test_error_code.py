"""Every refusal has a code of the closed list, the same on queues and SOW topics (X2)."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace

import fastavro
import orjson
import pytest

from lapse.core.error_code import ErrorCode, Refusal
from lapse.core.used_signature import VALID_MS
from lapse.protocol import answer, confluent, schema
from lapse.protocol.answer import Answer
from lapse.protocol.command import CommandError
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer
from lapse.runtime.kafka.output import Output
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.shard import command_work
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.sow.machine import SowMachine
from unit.runtime.authorization.test_command_authorizer import T, guard, signed
from unit.runtime.bad_input import ARRIVAL_MS, Input, finish, queue, sow

pytestmark = pytest.mark.feature("X2")

Machine = QueueMachine | SowMachine
MACHINES = {"queue": queue, "sow": sow}

REFUSED: dict[ErrorCode, list[dict[str, object]]] = {
    ErrorCode.MALFORMED: [{"command": "depth", "bogus": 1}, {"command": "depth", "top_n": "many"}],
    ErrorCode.UNKNOWN_COMMAND: [{"command": "frobnicate"}],
    ErrorCode.INVALID_ARGUMENT: [
        {"command": "subscribe"},
        {"command": "heartbeat"},
        {"command": "sow", "bookmarks": ["prices:0:0"], "filter": "TRUE"},
    ],
    ErrorCode.INVALID_EXPRESSION: [
        {"command": "sow", "filter": "/price >"},
        {"command": "subscribe", "subscription": "s", "filter": "/price >"},
    ],
    ErrorCode.UNKNOWN_SUBSCRIPTION: [
        {"command": "heartbeat", "subscription": "nobody"},
        {"command": "unsubscribe", "subscription": "nobody"},
    ],
}
"""What both kinds of entity refuse alike."""


def answers_to(machine: Machine, offset: int = 0, refused: Refusal | None = None, **command: object) -> list[Answer]:
    """Give a command, and what the shard says to itself about it; return the answers."""
    machine.command(Input(offset, None, json.dumps({"id": "1", **command}).encode()), refused)
    answers: list[Answer] = []
    for _ in range(9):
        machine.advance(ARRIVAL_MS)
        machine.deliver(ARRIVAL_MS + 1)
        written = [one for one in finish(machine).after if isinstance(one, Output)]
        answers += [answer.decode(one.value or b"") for one in written if dict(one.headers).get("lapse-kind")]
        for one in written:
            if one.key == SHARD_MESSAGE_KEY:
                machine.command(Input(offset + 1, SHARD_MESSAGE_KEY, one.value))
    return answers


def ask(machine: Machine, offset: int = 0, refused: Refusal | None = None, **command: object) -> list[Answer]:
    """Give a command; return the answers that refuse it."""
    return [one for one in answers_to(machine, offset, refused, **command) if one.status == "error"]


def refusal_of(machine: Machine, refused: Refusal | None = None, **command: object) -> Answer:
    """Give a command that is refused, and return the answer."""
    (failure,) = ask(machine, 0, refused, **command)
    assert failure.error
    return failure


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize(("code", "command"), [(code, one) for code, some in REFUSED.items() for one in some])
def test_both_kinds_of_entity_refuse_with_the_same_code(kind: str, code: ErrorCode, command: dict[str, object]) -> None:
    assert refusal_of(MACHINES[kind](), **command).code == code


@pytest.mark.parametrize("kind", MACHINES)
def test_a_deletion_is_refused_with_codes_and_what_comes_behind_it_too(kind: str) -> None:
    machine = MACHINES[kind]()
    machine.arrive("prices", 0, [Input()])
    finish(machine)
    refusal = refusal_of(machine, command="delete")
    assert (refusal.code, sum(refusal.counts.values())) == (ErrorCode.IN_USE, 1)
    assert ask(machine, command="delete", force=True) == []
    assert refusal_of(machine, command="depth").code == ErrorCode.DELETED


@pytest.mark.parametrize("kind", MACHINES)
def test_a_second_deletion_waits_for_the_first(kind: str) -> None:
    machine = MACHINES[kind]()
    machine.command(Input(0, None, b'{"command": "delete"}'))
    assert refusal_of(machine, command="delete").code == ErrorCode.DELETE_IN_PROGRESS


@pytest.mark.parametrize("kind", MACHINES)
def test_what_stopped_the_worker_has_its_code(kind: str) -> None:
    stopped = Refusal(ErrorCode.STOPPED_WORKER, "stopped the worker three times")
    assert refusal_of(MACHINES[kind](), stopped, command="depth").code == ErrorCode.STOPPED_WORKER


@pytest.mark.parametrize("kind", MACHINES)
def test_what_takes_too_much_work_has_its_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = MACHINES[kind]()
    machine.arrive("prices", 0, [Input(n, b"k%d" % n) for n in range(500)])
    finish(machine)
    monkeypatch.setattr(command_work, "MOST_S", -1.0)
    assert refusal_of(machine, command="sow", filter="/price > 0").code == ErrorCode.TOO_COSTLY


def test_a_transfer_with_another_destination_is_a_conflict() -> None:
    machine = queue()
    machine.arrive("prices", 0, [Input()])
    assert ask(machine, command="transfer", transfer="t", to="here") == []
    assert refusal_of(machine, command="transfer", transfer="t", to="there").code == ErrorCode.TRANSFER_CONFLICT


@pytest.mark.feature("X4")
@pytest.mark.parametrize(
    ("record", "code"),
    [
        (Input(value=b'{"command": "depth"}'), ErrorCode.UNAUTHENTICATED),
        (signed("alice", "depth", key=b"x" * 32), ErrorCode.UNAUTHENTICATED),
        (signed("alice", "depth", T, T - VALID_MS - 1), ErrorCode.SIGNATURE_EXPIRED),
        (signed("alice", "pause"), ErrorCode.FORBIDDEN),
    ],
)
def test_who_may_not_is_informed_by_code(record: Input, code: ErrorCode) -> None:
    with pytest.raises(CommandError) as caught:
        CommandAuthorizer(guard(), 0).read(record)
    assert caught.value.refusal == (code, str(caught.value))


@pytest.mark.feature("X4")
def test_a_command_that_was_sent_before_is_reported_by_code() -> None:
    authorizer = CommandAuthorizer(guard(), 0)
    authorizer.read(signed("alice", "depth"))
    with pytest.raises(CommandError) as caught:
        authorizer.read(signed("alice", "depth"))
    assert caught.value.code is ErrorCode.SENT_BEFORE


@pytest.fixture
def ids() -> Iterator[None]:
    confluent.configure({"command": 7, "answer": 8})
    yield
    confluent.configure({})


@pytest.mark.usefixtures("ids")
def test_who_registered_the_schema_before_codes_reads_all_but_the_code() -> None:
    older = orjson.loads(schema.text("answer"))
    names = [field["name"] for field in older["fields"]]
    assert names.index("code") == 13, "new fields come last, so that older readers stop before them"
    del older["fields"][13:]
    refused = Answer(id="1", command="depth", status="error", error="no", partition=3, at_ms=5, code="deleted")
    written = answer.encode(refused, "confluent")
    read = fastavro.schemaless_reader(io.BytesIO(written[5:]), fastavro.parse_schema(older), None)
    assert answer.decode(orjson.dumps(read)) == replace(refused, code="")


def test_json_without_a_code_is_read() -> None:
    assert answer.decode(b'{"id": "1", "command": "depth", "status": "ok"}').code == ""
    newer = answer.decode(b'{"id": "1", "command": "depth", "status": "error", "code": "of_a_newer_worker"}')
    assert newer.code == "of_a_newer_worker"

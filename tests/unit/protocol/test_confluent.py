"""Commands and answers in Confluent's wire format, where a registry's ids are configured (X2)."""

import io
import struct
from collections.abc import Iterator
from dataclasses import asdict

import fastavro
import pytest

from lapse.config import ConfigError
from lapse.config.document import loads
from lapse.protocol import answer, command, confluent, schema
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command, CommandError

ANSWER = Answer(id="1", command="sow", status="ok", partition=3, at_ms=5)

pytestmark = pytest.mark.feature("X2")


@pytest.fixture(autouse=True)
def ids() -> Iterator[None]:
    confluent.configure({"command": 7, "answer": 70_000})
    yield
    confluent.configure({})


def framed(number: int, sent: Command) -> bytes:
    """What a serializer of Confluent's writes."""
    out = io.BytesIO(struct.pack(">bI", 0, number))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, schema.parsed("command"), asdict(sent))
    return out.getvalue()


def test_a_command_is_read_and_answered_in_the_same_form() -> None:
    sent = Command(command="sow", id="1", filter="/price > 5", keys=(b"\xff",))
    read, encoding = command.decode(framed(7, sent))
    assert (read, encoding) == (sent, "confluent")
    written = answer.encode(ANSWER, encoding)
    assert written[:5] == struct.pack(">bI", 0, 70_000)
    answered = fastavro.schemaless_reader(io.BytesIO(written[5:]), schema.parsed("answer"), None)
    assert (answered["id"], answered["partition"], answered["status"]) == ("1", 3, "ok")


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (framed(8, Command(command="depth")), "its schema id is 8, and command_schema_id is 7"),
        (b"\0\0\0", "too short for a schema id"),
        (b"\0\0\0\0\x07\xff", "the Avro body is damaged"),
        (framed(7, Command(command="depth")) + b"x", "1 bytes too many"),
    ],
)
def test_what_is_damaged_or_of_another_schema_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(CommandError, match=text) as caught:
        command.decode(data)
    assert caught.value.encoding == "json"


@pytest.mark.feature("X7")
def test_without_ids_the_format_is_refused_and_a_late_answer_is_json() -> None:
    confluent.configure({})
    with pytest.raises(CommandError, match="neither Avro .* nor JSON.* say command_schema_id in"):
        command.decode(framed(7, Command(command="depth")))
    assert answer.encode(ANSWER, "confluent").startswith(b"{")


@pytest.mark.feature("X7")
def test_both_ids_or_none() -> None:
    assert loads("[lapse]\ncommand_schema_id = 1\nanswer_schema_id = 2").lapse.schema_ids == {"command": 1, "answer": 2}
    assert loads("").lapse.schema_ids == {}
    with pytest.raises(ConfigError, match=r"lapse.toml:1: lapse.answer_schema_id: .* need each other"):
        loads("[lapse]\ncommand_schema_id = 1")

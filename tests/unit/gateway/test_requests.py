"""Requests that the gateway refuses before they reach Kafka: with a status, a code and one sentence (X7)."""

import re

import orjson
import pytest
from pydantic import BaseModel

from lapse.core.error_code import ErrorCode
from lapse_client import error
from lapse_gateway import body, openapi
from lapse_gateway.application import DESCRIBED
from lapse_gateway.fault import STATUSES, Fault, fault_of
from lapse_gateway.publishing import Batch, Message
from unit.gateway.bad_requests import CASES, KEY, Case, ask, refusal_of


@pytest.mark.feature("X7")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.shown[:60])
def test_a_bad_request_is_refused_in_words(case: Case) -> None:
    answer = ask(case)
    answered = answer.json()["error"]
    assert (answer.status_code, answered["code"]) == (case.status, case.code)
    assert answered["code"] in STATUSES
    assert answered["text"]
    assert len(answered["text"]) < 400
    assert "\n" not in answered["text"]
    for word in ("Traceback", "pydantic", "NoneType", "recursion", "put should", "ing should", "ist should"):
        assert word not in answered["text"]


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        ("`GET /v1/quues`", "'/v1/queues'"),
        ("`GET /v1/queue/orders`", "'/v1/queues/orders'"),
        ("`GET /v1/queues/`", "'/v1/queues'"),
        ('`{"messages": [{"value": 1, "txet": "a"}]}`', "'text'"),
    ],
)
def test_the_nearest_path_or_field_is_named(shown: str, meant: str) -> None:
    (case,) = [one for one in CASES if one.shown == shown]
    assert f"(did you mean {meant}?)" in ask(case).json()["error"]["text"]


@pytest.mark.feature("X7")
def test_an_encoded_slash_belongs_to_the_name() -> None:
    (case,) = [one for one in CASES if "a%2Fb%252F" in one.shown]
    assert ask(case).json()["error"]["text"] == "subscription a/b%2F is not open at this gateway"


@pytest.mark.slow
def test_no_key_is_reported() -> None:
    for case in CASES:
        assert KEY not in ask(case).text


@pytest.mark.feature("X2")
def test_every_code_of_the_protocol_has_a_status() -> None:
    assert set(ErrorCode) <= set(STATUSES)
    assert all(400 <= Fault(code, "").status < 600 for code in STATUSES)


@pytest.mark.feature("X2")
def test_everything_that_the_client_raises_has_a_code() -> None:
    kinds = [kind for kind in vars(error).values() if isinstance(kind, type) and issubclass(kind, error.LapseError)]
    assert len(kinds) > 8
    for kind in kinds:
        raised = kind.__new__(kind)
        if kind is not error.CommandFailed:
            assert fault_of(raised).code in STATUSES


SHARDS_READ = {"select"}
"""Parameters that may be any text for the gateway. The refusals are among those of commands to a SOW topic."""


@pytest.mark.slow
@pytest.mark.feature("X7")
def test_every_parameter_and_field_of_a_body_has_a_refusal() -> None:
    described = orjson.loads(orjson.dumps(openapi.description(DESCRIBED, users=True)))
    known = {
        field
        for name, one in described["components"]["schemas"].items()
        if name != "Error"
        for field in one["properties"]
    }
    for operations in described["paths"].values():
        for operation in operations.values():
            known |= {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
    words = {word for case in CASES for word in re.findall(r"\w+", f"{case.shown} {refusal_of(case)}")}
    assert known - words == SHARDS_READ


_ODD = (None, True, 5, -1, 5.5, "", "x", [], [5], [[]], [["a", 5]], {}, {"a": 5}, b"123456789012345678901234567890")
"""Values of every type of JSON, and a number that nothing holds."""

_OF_PYTHON = re.compile(
    r"valid (?:tuple|string|integer|dictionary|list|boolean)|\b(?:dict|tuple|int|str|float|bool|NoneType)\b|None|True|"
    r"False|pydantic|validat|Exact|finite|input should"
)


def _fault_of(written: bytes, model: type[BaseModel]) -> str:
    try:
        body.decode(written, model)
    except Fault as fault:
        return fault.text
    return ""


@pytest.mark.feature("X2", "X7")
@pytest.mark.parametrize("model", sorted({one.model for one in DESCRIBED if one.model is not None}, key=str))
def test_no_value_of_a_wrong_type_shows_words_of_python(model: type[BaseModel]) -> None:
    faults = 0
    inner = {f"messages.{field}": field for field in Message.model_fields} if model is Batch else {}
    for field in (*model.model_fields, *inner):
        for value in _ODD:
            written = value if isinstance(value, bytes) else orjson.dumps(value)
            text = b'{"text": "t", "%b": %b}' % (inner[field].encode(), written) if field in inner else b""
            sent = b'{"messages": [%b]}' % text if text else b'{"%b": %b}' % (field.encode(), written)
            fault = _fault_of(sent, model)
            faults += bool(fault)
            assert not _OF_PYTHON.search(fault), f"{sent!r}: {fault}"
            assert not fault or re.search(r"expected|is missing|name|say|known|is empty|give it once", fault), fault
    assert faults > len(_ODD)

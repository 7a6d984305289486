"""Requests that the gateway refuses before they reach Kafka: with a status, a code and one sentence (X7)."""

import re

import orjson
import pytest

from lapse.core.error_code import ErrorCode
from lapse_client import error
from lapse_gateway import openapi
from lapse_gateway.application import DESCRIBED
from lapse_gateway.fault import STATUSES, Fault, fault_of
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

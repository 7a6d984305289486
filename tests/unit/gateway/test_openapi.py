"""The gateway's description in OpenAPI: by the specification, by itself, and by the table of operations (X2)."""

import orjson
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from lapse_gateway import openapi
from lapse_gateway.application import DESCRIBED


@pytest.mark.feature("X2")
@pytest.mark.slow
@pytest.mark.parametrize("users", [False, True])
def test_the_description_is_valid_by_the_specification(users: bool) -> None:
    described = orjson.loads(orjson.dumps(openapi.description(DESCRIBED, users=users, at="/deployments/north")))
    assert [f"{fault.json_path}: {fault.message}" for fault in OpenAPIV31SpecValidator(described).iter_errors()] == []


def test_the_description_names_every_operation_once_and_refers_to_what_is_there() -> None:
    described = orjson.loads(orjson.dumps(openapi.description(DESCRIBED, users=True)))
    assert described["openapi"] == "3.1.0"
    found = [(method.upper(), path) for path, methods in described["paths"].items() for method in methods]
    assert sorted(found) == sorted((one.method, one.path) for one in DESCRIBED)
    ids = [one["operationId"] for methods in described["paths"].values() for one in methods.values()]
    assert len(set(ids)) == len(ids)
    for ref in _refs(described):
        place = described
        for part in ref.removeprefix("#/").split("/"):
            place = place[part]
    public = {path for path, methods in described["paths"].items() for one in methods.values() if "security" not in one}
    assert public == {"/v1", "/openapi.json", "/health", "/ready", "/metrics"}


def _refs(place: object) -> list[str]:
    if isinstance(place, dict):
        own = [place["$ref"]] if "$ref" in place else []
        return own + [ref for value in place.values() for ref in _refs(value)]
    return [ref for value in place for ref in _refs(value)] if isinstance(place, list) else []

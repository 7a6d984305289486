"""Validates objects with the schemas of Kubernetes, KEDA and the Prometheus operator, which are in `schemas`."""

import functools
import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml
from referencing.jsonschema import DRAFT202012, EMPTY_REGISTRY

SCHEMAS: Final = Path(__file__).parents[2] / "unit/deploy/schemas"


class _OfOneKey(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys, as an API server does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) != len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key is there twice", node.start_mark)
        return found


def faults(text: str) -> list[str]:
    """Return the faults of the objects in a YAML text. A kind without a schema and a text without objects are faults.

    Raises:
        yaml.YAMLError: The text is no YAML, or an object has a key twice.
    """
    objects = [one for one in yaml.load_all(text, _OfOneKey) if one is not None]
    found = [] if objects else ["no objects"]
    for one in objects:
        named = f"{one['kind']} {one['metadata']['name']}"
        schema = SCHEMAS / _file(one["kind"], one["apiVersion"])
        if not schema.exists():
            found.append(f"{named}: no schema of {one['apiVersion']}")
            continue
        wrong = _validator(schema).iter_errors(one)
        found += [f"{named}: {fault.json_path}: {fault.message}" for fault in wrong]
    return found


def _file(kind: str, version: str) -> str:
    """Return the file name of a schema: `deployment-apps-v1.json` for a Deployment of `apps/v1`."""
    group, _, number = version.rpartition("/")
    return "-".join(filter(None, [kind.lower(), group.partition(".")[0], number])) + ".json"


@functools.cache
def _validator(schema: Path) -> Any:
    shared = DRAFT202012.create_resource(json.loads((SCHEMAS / "definitions.json").read_text("utf-8")))
    registry = EMPTY_REGISTRY.with_resource("definitions.json", shared)
    return jsonschema.Draft202012Validator(json.loads(schema.read_text("utf-8")), registry=registry)

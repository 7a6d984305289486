"""What is imported from lapse by the packages that also work without a worker. `make check` looks at indirect imports.

`docs/architecture.md` and `CONTRIBUTING.md` say the same. A new line here is a new dependency: it has to be meant.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from support.suite.statement import imports

CONNECTORS = Path(__file__).parents[2] / "connectors"

ON_THE_WIRE = {
    f"lapse.core.{name}"
    for name in ("days", "error_code", "expression", "generation", "letter", "lifetime", "near_name")
}
ALLOWED = {
    "lapse_client": ON_THE_WIRE
    | {"lapse.controller", "lapse.core.broker_offset", "lapse.silence", "lapse.topic_creation"},
    "lapse_spark": {
        *ON_THE_WIRE,
        "lapse.core.reason",
        "lapse.core.shard.event",
        "lapse.embedded",  # the jars of Spark, and Java
        "lapse.option_type",
        "lapse.recorded",
        "lapse.tables",
    },
    "lapse_gateway": ON_THE_WIRE | {"lapse", "lapse.core.entitlement", "lapse.core.reason", "lapse.process_end"},
    "lapse_kombu": {"lapse"},
}
"""Beside `lapse.protocol`, which every package may use."""


def imported(package: str) -> set[str]:
    """The modules of lapse that a package's modules import, wherever they do so."""
    found = set[str]()
    for file in (CONNECTORS / package).rglob("*.py"):
        for node in imports(file.read_text("utf-8")):
            match node:
                case ast.Import(names=names):
                    found |= {one.name for one in names}
                case ast.ImportFrom(module=str(module), names=names):
                    packages = ("lapse", "lapse.core", "lapse.core.shard")
                    found |= {
                        f"{module}.{one.name}" if module in packages and not one.name.startswith("__") else module
                        for one in names
                    }
                case _:
                    pass
    return {name for name in found if name.partition(".")[0] == "lapse" and not name.startswith("lapse.protocol")}


def is_allowed(name: str, package: str) -> bool:
    """Whether a module or a package around it is listed. `lapse` itself, for its version, opens nothing else."""
    return any(name == one or (one != "lapse" and name.startswith(f"{one}.")) for one in ALLOWED[package])


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_only_what_is_listed_is_imported(package: str) -> None:
    assert [name for name in sorted(imported(package)) if not is_allowed(name, package)] == []

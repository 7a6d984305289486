"""The format of payloads and their schemas, as `lapse.toml` says them (S1, X1, X7)."""

import json
import re
from pathlib import Path

import pytest

from lapse.config import ConfigError, load, loads

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def schema(*fields: dict[str, object]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


def entity(directory: Path, text: str, kind: str = "sow") -> object:
    (directory / "v1.avsc").write_text(schema({"name": "a", "type": "int"}), "utf-8")
    (directory / "v2.avsc").write_text(
        schema({"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": ""}), "utf-8"
    )
    (directory / "v3.avsc").write_text(schema({"name": "a", "type": "long"}, {"name": "c", "type": "string"}), "utf-8")
    (directory / "lapse.toml").write_text(f"[{kind}.orders]\n{text}\n", "utf-8")
    return getattr(load(directory / "lapse.toml"), kind)["orders"]


@pytest.mark.feature("S1", "X1", "C31")
@pytest.mark.parametrize("kind", ["sow", "queue"])
@pytest.mark.parametrize(
    ("text", "files"),
    [
        ('value_format = "avro"\nvalue_schema = "v2.avsc"\nvalue_writer_schemas = ["v1.avsc"]', ["v1.avsc"]),
        (
            'value_format="avro-confluent"\nvalue_schema="v2.avsc"\nvalue_writer_schemas={ 7="v1.avsc", 9="v2.avsc" }',
            ["v1.avsc", "v2.avsc"],
        ),
    ],
)
def test_schemas_are_found_beside_the_configuration(tmp_path: Path, text: str, files: list[str], kind: str) -> None:
    found = entity(tmp_path, text, kind)
    listed = found.value_writer_schemas
    paths = listed.values() if isinstance(listed, dict) else listed
    assert list(paths) == [str(tmp_path / file) for file in files]
    if isinstance(listed, dict):
        assert found.payload().parse(b"\0\0\0\0\x07\x0a") == {"a": 5, "b": ""}


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('value_format = "avro"', "need each other"),
        ('value_schema = "v1.avsc"', "need each other"),
        ('value_writer_schemas = ["v1.avsc"]', "value_writer_schemas: needs value_schema"),
        ('value_format = "avro"\nvalue_schema = "none.avsc"', "No such file"),
        ('value_format = "avro"\nvalue_schema = "v1.avsc"\nvalue_writer_schemas = ["none.avsc"]', "No such file"),
        ('value_format = "avro"\nvalue_schema = "v1.avsc"\nvalue_writer_schemas = "v2.avsc"', "a list of files"),
        ('value_format = "avro"\nvalue_schema = "v1.avsc"\nvalue_writer_schemas = { x = "v2.avsc" }', "by id"),
        ('value_format = "avro"\nvalue_schema = "v1.avsc"\nvalue_writer_schemas = { 1 = "v1.avsc" }', "is a list"),
        (
            'value_format = "avro-confluent"\nvalue_schema = "v1.avsc"\nvalue_writer_schemas = ["v1.avsc"]',
            "a table of files by id",
        ),
        (
            'value_format = "avro-confluent"\nvalue_schema = "v2.avsc"\nvalue_writer_schemas = { 1 = "v1.avsc" }',
            "none of the schemas with an id is v2.avsc",
        ),
        (
            'value_format = "avro"\nvalue_schema = "v3.avsc"\nvalue_writer_schemas = ["v1.avsc"]',
            "what was written with v1.avsc cannot be read with v3.avsc: /c is not in v1.avsc",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        entity(tmp_path, text)
    assert words in str(refused.value)
    assert "orders" in str(refused.value)


@pytest.mark.feature("S1", "X1")
def test_what_the_documentation_shows_is_accepted(tmp_path: Path) -> None:
    text = PAGE.read_text("utf-8").split("### Payloads in Avro")[1]
    block = text.split("```")[1]
    for file in re.findall(r'"(\S+\.avsc)"', block):
        default = {} if "v1" in file else {"default": 0}
        (tmp_path / file).write_text(schema({"name": f"of_{file[-7:-5]}", "type": "int", **default}), "utf-8")
    config = loads(block, beside=tmp_path)
    assert config.sow["quotes"].payload() is not None
    assert config.queue["orders"].payload() is not None

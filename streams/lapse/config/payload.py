"""The configuration of payloads: their format, and the schemas that they are written and read with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ValidationInfo, field_validator, model_validator

from lapse.config.fault import setting_error
from lapse.protocol.avro_bounds import AvroBounds
from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_schema import AvroSchema


class PayloadConfig(BaseModel):
    """The settings of an entity's payloads.

    Attributes:
        value_format: format of payloads: `"json"`, `"avro"` (bare or single-object encoding) or `"avro-confluent"`
            (Confluent's wire format) (S1, S2, X1).
        value_schema: file of the Avro schema that they are read with, relative to `lapse.toml`.
        value_writer_schemas: files of the Avro schemas that they are written with: for `"avro"` a list of those other
            than `value_schema`, for `"avro-confluent"` a table of all, by id.
    """

    value_format: Literal["json", "avro", "avro-confluent"] = "json"
    value_schema: str | None = None
    value_writer_schemas: tuple[str, ...] | dict[int, str] = ()

    @field_validator("value_schema")
    @classmethod
    def _schema(cls, file: str | None, info: ValidationInfo) -> str | None:
        return None if file is None else _schema_file(file, info)

    @field_validator("value_writer_schemas", mode="before")
    @classmethod
    def _schemas(cls, files: object, info: ValidationInfo) -> object:
        if isinstance(files, list | tuple) and all(isinstance(file, str) for file in files):
            return tuple(_schema_file(file, info) for file in files)
        if isinstance(files, dict) and all(_is_id(number) and isinstance(file, str) for number, file in files.items()):
            return {int(number): _schema_file(file, info) for number, file in files.items()}
        raise ValueError('expected a list of files, or a table of files by id such as { 7 = "orders-v1.avsc" }')

    @model_validator(mode="after")
    def _format_and_schemas(self) -> Self:
        if (self.value_format == "json") is (self.value_schema is not None):
            raise setting_error(
                "value_schema" if self.value_format == "json" else "value_format",
                'value_format = "avro" or "avro-confluent" and value_schema = "FILE.avsc" need each other',
            )
        if self.value_writer_schemas:
            if self.value_schema is None:
                raise setting_error("value_writer_schemas", "needs value_schema, which payloads are read with")
            if isinstance(self.value_writer_schemas, dict) is not (self.value_format == "avro-confluent"):
                raise setting_error(
                    "value_writer_schemas",
                    'is a list of files with value_format = "avro", and a table of files by id with "avro-confluent"',
                )
        try:
            self.payload()
        except ValueError as error:
            raise setting_error("value_writer_schemas", str(error)) from error
        return self

    def payload(self) -> AvroPayload | None:
        """Return the reader and writer of Avro payloads; None = JSON.

        Raises:
            ValueError: a schema cannot be read, or payloads written with it cannot be read with `value_schema`.
        """
        if self.value_schema is None:
            return None
        schema = AvroSchema.of_file(Path(self.value_schema))
        written, confluent = self.value_writer_schemas, self.value_format == "avro-confluent"
        if isinstance(written, dict):
            ids = {number: AvroSchema.of_file(Path(file)) for number, file in written.items()}
            return AvroPayload(schema, confluent=confluent, ids=ids)
        return AvroPayload(schema, [AvroSchema.of_file(Path(file)) for file in written], confluent=confluent)


def _schema_file(file: str, info: ValidationInfo) -> str:
    """Return the absolute path of a schema that `lapse.toml` names, after checking that the schema is valid."""
    path = Path((info.context or {}).get("beside", "."), file).absolute()
    AvroBounds(AvroSchema.of_file(path))
    return str(path)


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and re.fullmatch(r"[0-9]{1,10}", str(value)) is not None

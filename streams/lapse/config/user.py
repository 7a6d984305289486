"""The configuration of a user (`[users.<name>]`): keys and entitlements (X4)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from lapse.core.entitlement import Entitlement, Right
from lapse.core.expression import ExpressionError, compile_filter
from lapse.protocol import signature


class EntitlementConfig(BaseModel):
    """A user's entitlement to the entities of one name or pattern.

    Attributes:
        read: to receive, query and settle.
        publish: to write to the underlying topics, and to delete records of a SOW topic.
        admin: to pause, resume, purge, transfer and delete.
        create: to create and alter entities of this name while workers run (C67).
        filter: an expression; messages and records that do not match it do not exist for the user.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    read: bool = Field(default=False, strict=True)
    publish: bool = Field(default=False, strict=True)
    admin: bool = Field(default=False, strict=True)
    create: bool = Field(default=False, strict=True)
    filter: str | None = None

    @field_validator("filter")
    @classmethod
    def _compiles(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                compile_filter(text)
            except ExpressionError as error:
                raise ValueError(str(error)) from error
        return text

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not (self.read or self.publish or self.admin or self.create):
            raise ValueError("grants nothing; set read, publish, admin or create to true, or take it out")
        if self.filter is not None and self.admin:
            raise ValueError(
                "filter is not possible together with admin, which is about the whole entity; make the administrator "
                "another user"
            )
        return self

    def granted(self) -> Entitlement:
        """Return the entitlement in the core's form."""
        rights = frozenset(right for right in Right if getattr(self, right.value))
        return Entitlement(rights, self.filter or "")


class UserConfig(BaseModel):
    """The settings of a user.

    Attributes:
        key_file: file with the keys with which they sign, one per line, relative to `lapse.toml`.
        key_env: environment variable of the workers that contains the keys instead.
        principal: their principal in Kafka, such as `"User:alice"`, to which `lapse apply` grants rights.
        entitlements: their entitlements, by name of the entity or a regular expression that matches the full name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key_file: str | None = None
    key_env: str | None = None
    principal: str | None = Field(default=None, pattern=r"^\S+:.+$")
    entitlements: dict[str, EntitlementConfig] = {}

    @field_validator("key_file")
    @classmethod
    def _beside(cls, file: str | None, info: ValidationInfo) -> str | None:
        return None if file is None else str(Path((info.context or {}).get("beside", "."), file).absolute())

    @field_validator("entitlements")
    @classmethod
    def _patterns(cls, entitlements: dict[str, EntitlementConfig]) -> dict[str, EntitlementConfig]:
        for name in entitlements:
            try:
                re.compile(name)
            except re.error as error:
                raise ValueError(f"{name!r} is neither an entity nor a regular expression: {error}") from error
        return entitlements

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if (self.key_file is None) is (self.key_env is None):
            raise ValueError("set either key_file or key_env: where the key is with which this user signs commands")
        return self

    def granted(self) -> Mapping[str, Entitlement]:
        """Return their entitlements in the core's form."""
        return {name: one.granted() for name, one in self.entitlements.items()}

    def keys(self) -> tuple[bytes, ...]:
        """Read the user's keys.

        Raises:
            ValueError: there is no key, or one is too short; the message says where, and never shows a key.
        """
        return read_keys(self.key_file, self.key_env or "")


def read_keys(file: str | None, variable: str) -> tuple[bytes, ...]:
    """Read keys from a file, or from an environment variable if no file is named.

    Raises:
        ValueError: there is no key, or one is too short; the message says where, and never shows a key.
    """
    if file is not None:
        place = file
        try:
            text = Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ValueError(f"{file}: cannot be read: {reason}") from error
    else:
        place = f"the environment variable {variable}"
        text = os.environ.get(variable, "")
    try:
        return signature.keys_in(text)
    except ValueError as error:
        raise ValueError(f"{place} {error}") from error

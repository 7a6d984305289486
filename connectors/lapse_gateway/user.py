"""Authentication of requests by Basic or Bearer, and the rights of lapse's users (X4)."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from lapse.core.entitlement import Entitlement, Right, find_entitlement
from lapse.core.error_code import ErrorCode
from lapse_client import Connection
from lapse_gateway.fault import Fault

_ASK: Final = {"WWW-Authenticate": 'Basic realm="lapse", charset="UTF-8"'}
_NAME_THEM: Final = "send `Authorization: Basic` with user and key (curl -u user:key), or `Bearer` with the key alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of lapse, from `lapse.toml`.

    Attributes:
        name: name of the user.
        keys: the valid keys. Commands are signed with the first one.
        entitlements: their entitlements, by name or pattern of entities.
    """

    name: str
    keys: tuple[bytes, ...] = field(repr=False)
    entitlements: Mapping[str, Entitlement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """All users, and the entities that read topics.

    Attributes:
        users: users by name; empty = no users, and everybody may do what the gateway itself may.
        readers: returns the entities that read a topic. A user who may publish to one of them may write to the topic.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    readers: Callable[[str], frozenset[str]] = lambda topic: frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: name of the user; empty if there are no users.
        connection: connection to the cluster in the user's name.
        entitlements: their entitlements; None if there are no users.
    """

    name: str
    connection: Connection
    entitlements: Mapping[str, Entitlement] | None = None

    def entitlement(self, entity: str) -> Entitlement | None:
        """Return the caller's entitlement to an entity; None = everything is allowed."""
        return None if self.entitlements is None else find_entitlement(entity, self.entitlements)

    def may_see_some(self, entity: str) -> bool:
        """Return whether the caller has any right on an entity."""
        entitlement = self.entitlement(entity)
        return entitlement is None or bool(entitlement.rights)

    def check_publish(self, to: str, readers: frozenset[str]) -> None:
        """Check that the caller may publish to a topic or queue.

        Args:
            to: name of the topic or queue.
            readers: the entities that read the topic.

        Raises:
            Fault: the caller may not.
        """
        if self.entitlements is None:
            return
        for entity in readers or {to}:
            if Right.PUBLISH in find_entitlement(entity, self.entitlements).rights:
                return
        raise Fault(
            ErrorCode.FORBIDDEN, f"user {self.name} lacks publish on {', '.join(sorted(readers or {to}))} (lapse.toml)"
        )

    def sees_whole(self, entity: str) -> bool:
        """Return whether the caller may read the whole entity."""
        entitlement = self.entitlement(entity)
        return entitlement is None or (Right.READ in entitlement.rights and not entitlement.filter)

    def may_read(self, entity: str) -> bool:
        """Return whether the caller may read an entity, or a part of it."""
        entitlement = self.entitlement(entity)
        return entitlement is None or Right.READ in entitlement.rights

    def may_administer(self, entity: str) -> bool:
        """Return whether the caller may pause, purge and rewind an entity."""
        entitlement = self.entitlement(entity)
        return entitlement is None or Right.ADMIN in entitlement.rights

    def may_list(self, entity: str) -> bool:
        """Return whether the caller may list the subscriptions of an entity."""
        entitlement = self.entitlement(entity)
        return entitlement is None or bool({Right.READ, Right.ADMIN} & entitlement.rights and not entitlement.filter)

    def check_read(self, entity: str) -> None:
        """Check that the caller may read an entity, or a part of it.

        Raises:
            Fault: the caller may not.
        """
        if not self.may_read(entity):
            raise Fault(ErrorCode.FORBIDDEN, f"user {self.name} lacks read on {entity} (lapse.toml)")

    def check_whole(self, entity: str, what: str) -> None:
        """Check that the caller may read the whole entity.

        Raises:
            Fault: the caller may not, or their entitlement has a filter.
        """
        entitlement = self.entitlement(entity)
        if entitlement is None:
            return
        self.check_read(entity)
        if entitlement.filter:
            raise Fault(
                ErrorCode.FORBIDDEN,
                f"user {self.name} may read only a part of {entity}; {what} can be read only with a right to all of it",
            )

    def check_reads(self, entity: str, topic: str, readers: frozenset[str]) -> None:
        """Check that an entity reads a topic, because a right on the entity covers only its topics' records.

        Args:
            entity: the entity on which the caller has a right.
            topic: the topic of the requested record.
            readers: the entities that read the topic.

        Raises:
            Fault: the entity does not read the topic.
        """
        if self.entitlements is not None and entity not in readers:
            raise Fault(ErrorCode.FORBIDDEN, f"{entity} does not read {topic}, so a right on it shows nothing of that")


class Authenticator:
    """Finds the sender of a request.

    Args:
        connection: the gateway's own connection to the cluster.
        users: users that it admits.

    Attributes:
        everybody: the caller if there are no users, or the operation needs none.
    """

    def __init__(self, connection: Connection, users: Users) -> None:
        # HTTP callers should learn soon that no worker runs.
        connection = replace(connection, insists=False)
        self.everybody = Caller(name="", connection=connection)
        self._by_name = users.users
        # Keys are found by their digests, so the time of a lookup does not reveal keys that are nearly right.
        self._by_digest = {sha256(key).digest(): user for user in users.users.values() for key in user.keys}
        self._callers = {
            user.name: Caller(
                name=user.name,
                connection=replace(connection, user=user.name, secret=user.keys[0].decode()),
                entitlements=user.entitlements,
            )
            for user in users.users.values()
        }

    def caller(self, authorization: str | None) -> Caller:
        """Return the caller that the header `Authorization` names.

        Raises:
            Fault: the header names no known user.
        """
        if not self._by_name:
            return self.everybody
        if authorization is None:
            raise Fault(ErrorCode.UNAUTHENTICATED, f"who are you? {_NAME_THEM}", _ASK)
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic":
            return self._basic(given.strip())
        if scheme.lower() == "bearer":
            user = self._by_digest.get(sha256(_bytes(given.strip())).digest())
            if user is None:
                raise Fault(ErrorCode.UNAUTHENTICATED, "this is the key of no user of lapse.toml", _ASK)
            return self._callers[user.name]
        raise Fault(ErrorCode.UNAUTHENTICATED, f"Authorization: {scheme[:20]!r} is not known; {_NAME_THEM}", _ASK)

    def _basic(self, given: str) -> Caller:
        try:
            name, colon, key = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, ValueError) as error:
            raise Fault(ErrorCode.UNAUTHENTICATED, f"Authorization: Basic is no Base64; {_NAME_THEM}", _ASK) from error
        user = self._by_name.get(name)
        right = False
        for own in user.keys if user else (b"",):
            right |= hmac.compare_digest(own, key.encode())
        if user is None or not colon or not right:
            raise Fault(ErrorCode.UNAUTHENTICATED, "user and key do not belong together in lapse.toml", _ASK)
        return self._callers[user.name]


def _bytes(text: str) -> bytes:
    """Return the bytes of a header that the HTTP library has decoded as Latin-1."""
    return text.encode("latin-1", "replace")

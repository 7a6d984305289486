"""Who sends a request: the users of lapse, by Basic or Bearer (X4)."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from lapse.core.entitlement import Entitlement, Right, entitlement_to
from lapse.core.error_code import ErrorCode
from lapse_client import Connection
from lapse_gateway.fault import Fault

_ASK: Final = {"WWW-Authenticate": 'Basic realm="lapse", charset="UTF-8"'}
_NAME_THEM: Final = "send `Authorization: Basic` with user and key (curl -u user:key), or `Bearer` with the key alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of lapse, as `lapse.toml` has it.

    Attributes:
        name: what they are called.
        keys: any of these is right; commands are signed with the first one.
        entitlements: what they may do, by name or pattern of entities.
    """

    name: str
    keys: tuple[bytes, ...] = field(repr=False)
    entitlements: Mapping[str, Entitlement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """All users, and which entities read a topic.

    Attributes:
        users: by name; empty = there are none, and everybody may do what the gateway itself may.
        readers: the names of the entities that read a topic; who may publish to one of them may write there.
    """

    users: Mapping[str, User] = field(default_factory=dict)
    readers: Callable[[str], frozenset[str]] = lambda topic: frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request.

    Attributes:
        name: their name; empty where there are no users.
        connection: how the cluster is reached in their name.
        entitlements: what they may do; None where there are no users.
    """

    name: str
    connection: Connection
    entitlements: Mapping[str, Entitlement] | None = None

    def entitlement(self, entity: str) -> Entitlement | None:
        """What they may do with an entity; None = anything."""
        return None if self.entitlements is None else entitlement_to(entity, self.entitlements)

    def may_see_some(self, entity: str) -> bool:
        """Whether they have any right on an entity."""
        entitlement = self.entitlement(entity)
        return entitlement is None or bool(entitlement.rights)

    def check_publish(self, to: str, readers: frozenset[str]) -> None:
        """Do nothing for a user who may publish there.

        Args:
            to: the topic or queue.
            readers: the entities that read the topic.

        Raises:
            Fault: they may not.
        """
        if self.entitlements is None:
            return
        for entity in readers or {to}:
            if Right.PUBLISH in entitlement_to(entity, self.entitlements).rights:
                return
        raise Fault(
            ErrorCode.FORBIDDEN, f"user {self.name} lacks publish on {', '.join(sorted(readers or {to}))} (lapse.toml)"
        )

    def sees_whole(self, entity: str) -> bool:
        """Whether they may read all of an entity."""
        entitlement = self.entitlement(entity)
        return entitlement is None or (Right.READ in entitlement.rights and not entitlement.filter)

    def may_read(self, entity: str) -> bool:
        """Whether they may read an entity, or a part of it."""
        entitlement = self.entitlement(entity)
        return entitlement is None or Right.READ in entitlement.rights

    def may_list(self, entity: str) -> bool:
        """Whether they may know who is subscribed to an entity."""
        entitlement = self.entitlement(entity)
        return entitlement is None or bool({Right.READ, Right.ADMIN} & entitlement.rights and not entitlement.filter)

    def check_read(self, entity: str) -> None:
        """Do nothing for a user who may read an entity, or a part of it.

        Raises:
            Fault: they may not.
        """
        if not self.may_read(entity):
            raise Fault(ErrorCode.FORBIDDEN, f"user {self.name} lacks read on {entity} (lapse.toml)")

    def check_whole(self, entity: str, what: str) -> None:
        """Do nothing for a user who may read all of an entity.

        Raises:
            Fault: they may not, or their entitlement has a filter.
        """
        entitlement = self.entitlement(entity)
        if entitlement is None:
            return
        self.check_read(entity)
        if entitlement.filter:
            raise Fault(
                ErrorCode.FORBIDDEN,
                f"user {self.name} may see a part of {entity} only, and {what} cannot be bounded by a filter",
            )

    def check_reads(self, entity: str, topic: str, readers: frozenset[str]) -> None:
        """Do nothing where an entity reads a topic: a right on the one shows no other topic's records.

        Args:
            entity: on which the caller has a right.
            topic: whose record is asked for.
            readers: the entities that read it.

        Raises:
            Fault: it is another topic.
        """
        if self.entitlements is not None and entity not in readers:
            raise Fault(ErrorCode.FORBIDDEN, f"{entity} does not read {topic}, so a right on it shows nothing of that")


class Authenticator:
    """Tells who sends a request.

    Args:
        connection: how the gateway itself reaches the cluster.
        users: whom it lets in.

    Attributes:
        everybody: who asks where there are no users, or where none is needed.
    """

    def __init__(self, connection: Connection, users: Users) -> None:
        # Who waits for the answer to a request is told soon that no worker runs.
        connection = replace(connection, insists=False)
        self.everybody = Caller(name="", connection=connection)
        self._by_name = users.users
        # A key is looked for by its digest, so the time that it takes says nothing about keys that are nearly right.
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
        """Who says so, by the header `Authorization`.

        Raises:
            Fault: nobody who is known.
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
    """A header's text as the bytes that were sent: HTTP libraries read them as Latin-1."""
    return text.encode("latin-1", "replace")

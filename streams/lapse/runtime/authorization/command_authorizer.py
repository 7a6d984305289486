"""The command authorizer of a shard: checks who sends a command, and whether they may (X4).

If users are configured, every subscription or command name begins with its user's name: `alice/worker-17`. So names of
two users never collide, and each output reaches its user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from lapse.core.entitlement import (
    DEFINITION_RIGHTS,
    NOTHING,
    QUEUE_RIGHTS,
    SOW_RIGHTS,
    Entitlement,
    Right,
    missing_right,
)
from lapse.core.error_code import ErrorCode
from lapse.core.used_signature import VALID_MS, UsedSignatures, is_valid
from lapse.protocol import command as commands
from lapse.protocol import signature, topic
from lapse.protocol.command import Command, CommandError, Encoding
from lapse.protocol.signature import Signed

_OWN: Final = "/"
"""Stands between the user's name and the name that they chose. A user's name does not contain it."""

Headers = list[tuple[str, bytes]]


class Admitted(NamedTuple):
    """A command that may be carried out.

    Attributes:
        command: the command.
        encoding: the encoding of its answer.
        row_filter: an expression, the filter of its user's entitlement; None for all records.
        at_ms: its instant, ms since the epoch.
        offset: its offset on the commands topic.
    """

    command: Command
    encoding: Encoding
    row_filter: str | None
    at_ms: int
    offset: int


def admit_all(record: Any) -> Admitted:
    """Decode a command if no users are configured, so that everybody may do everything.

    Raises:
        CommandError: it cannot be decoded.
    """
    return Admitted(*commands.decode(record.value), None, record.timestamp, record.offset)


class Denied(CommandError):
    """A command whose sender is not authenticated, or lacks the right.

    Args:
        message: what is wrong, for the sender.
        cause: one of `CAUSES`.
        encoding: the encoding of the answer.

    Attributes:
        cause: one of `CAUSES`.
    """

    def __init__(self, message: str, cause: str, encoding: Encoding = "json") -> None:
        super().__init__(message, encoding)
        self.cause = cause
        self.code = _CODES.get(cause, ErrorCode.UNAUTHENTICATED)


def whose(record: Any) -> str:
    """Return the user that a command names as its sender, checked or not; empty if none."""
    return signature.read(record.headers).user


def of_user(user: str, name: str) -> str:
    """Return a user's name for something, as shards know it."""
    return f"{user}{_OWN}{name}"


def parted(name: str) -> tuple[str, str]:
    """Split a name into its user, and the name as they chose it."""
    user, _, own = name.partition(_OWN)
    return user, own


@dataclass(frozen=True, slots=True)
class Guard:
    """The users and rights of one entity, for the authorizers of its shards.

    Attributes:
        entity: name of the entity.
        kind: `queue`, `SOW topic` or `deployment`, for messages.
        keys: the keys of every user of the deployment. They may be changed in place, as `worker_keys` may.
        entitlements: by user, for those who have one.
        worker_keys: the keys with which shards sign messages to each other.
        now_ms: returns the time of the broker's clock, ms since the epoch.
    """

    entity: str
    kind: str
    keys: Mapping[str, tuple[bytes, ...]] = field(repr=False)
    entitlements: Mapping[str, Entitlement]
    worker_keys: Sequence[bytes] = field(repr=False)
    now_ms: Callable[[], int]

    @property
    def deliveries(self) -> list[str]:
        """The topics on which the entity's shards write to users."""
        return [topic.deliveries(self.entity, user) for user in self.entitlements]


class CommandAuthorizer:
    """Checks the commands of one shard.

    Args:
        guard: the users, keys and rights.
        partition: the shard's number.

    Attributes:
        denied: the number of refused commands, by cause.
    """

    def __init__(self, guard: Guard, partition: int) -> None:
        self.denied: Counter[str] = Counter()
        self._guard = guard
        self._partition = partition
        self._topic = topic.commands(guard.entity)
        self._needed = _NEEDED.get(guard.kind, SOW_RIGHTS)
        self._used = UsedSignatures()

    @property
    def users(self) -> Collection[str]:
        """The users who have any right on the entity, and so a topic of their own."""
        return self._guard.entitlements.keys()

    def remember(self, records: Iterable[Any]) -> None:
        """Note the signatures of commands that were processed before a take-over, so that none is accepted again."""
        for record in records:
            signed = signature.read(record.headers)
            if signed.signature and self._is_right(signed, record) and is_valid(signed.at_ms, record.timestamp):
                self._used.use(signed.signature, record.timestamp)

    def read(self, record: Any) -> Admitted:
        """Decode a command and check whether it may be carried out.

        Raises:
            CommandError: it cannot be decoded.
            Denied: its sender is not who they say, or may not do this.
        """
        signed = signature.read(record.headers)
        denied = self._identify(signed, record)
        # Only a known user has a topic for answers.
        user = signed.user if signed.user in self._guard.entitlements else ""
        try:
            command, encoding = commands.decode(record.value)
        except CommandError as error:
            refusal = error if denied is None else denied
            refusal.id, refusal.subscription = of_user(user, error.id), of_user(user, error.subscription)
            refusal.command, refusal.encoding = error.command, error.encoding
            raise self._counted(refusal) from None
        if denied is None:
            denied = self._authorise(signed.user, command)
        own = replace(
            command,
            id=of_user(user, command.id),
            subscription=of_user(user, command.subscription) if command.subscription else "",
        )
        if denied is not None:
            denied.id, denied.subscription, denied.command = own.id, own.subscription, own.command
            denied.encoding, denied.silent = encoding, command.answer == "none"
            raise self._counted(denied)
        return Admitted(own, encoding, self._guard.entitlements[user].row_filter, record.timestamp, record.offset)

    def seal(self, partition: int, value: bytes) -> Headers:
        """Return headers that sign a message from this shard to another one."""
        key = self._guard.worker_keys[0]
        return signature.headers(key, "", self._topic, partition, self._guard.now_ms(), value)

    def is_sealed(self, record: Any) -> bool:
        """Return whether a shard signed this message, and it was not read before."""
        signed = signature.read(record.headers)
        sealed = not signed.user and self._is_right(signed, record) and is_valid(signed.at_ms, record.timestamp)
        sealed = sealed and self._used.use(signed.signature, record.timestamp)
        if not sealed:
            self.denied["shard_message"] += 1
        return sealed

    def ended(self, subscription: str, row_filter: str | None) -> str:
        """Return why a subscription that existed at take-over must end; empty if it may stay."""
        user, _ = parted(subscription)
        entitlement = self._guard.entitlements.get(user, NOTHING)
        if Right.READ not in entitlement.rights:
            return f"{user or 'nobody'} may not read {self._guard.entity} any more"
        if (row_filter or None) != entitlement.row_filter:
            return f"what {user} may read of {self._guard.entity} has changed"
        return ""

    def _identify(self, signed: Signed, record: Any) -> Denied | None:
        """Return None if a command is from its named sender, recent, and not sent before; else the refusal."""
        where = f"{self._guard.kind} {self._guard.entity}"
        if not signed.user:
            return Denied(f"{where}: the command bears no user. {_SIGN}", "unsigned")
        if signed.user not in self._guard.keys:
            return Denied(f"{where}: there is no user {signed.user[:64]!r}. {_SIGN}", "unknown_user")
        if not signed.signature:
            return Denied(f"{where}: the command of {signed.user} bears no signature. {_SIGN}", "unsigned")
        if not self._is_right(signed, record):
            return Denied(
                f"{where}: the signature is not {signed.user}'s. Sign with the right key, for this topic and "
                "partition, exactly the bytes that are sent",
                "signature",
            )
        if not is_valid(signed.at_ms, record.timestamp):
            apart_s = (record.timestamp - signed.at_ms) // 1000
            return Denied(
                f"{where}: the command was signed {apart_s} s before Kafka had it; {VALID_MS // 1000} s are allowed. "
                "Set the clock, or sign later",
                "stale",
            )
        if not self._used.use(signed.signature, record.timestamp):
            return Denied(f"{where}: this command was sent before; sign it anew to repeat it", "repeated")
        return None

    def _authorise(self, user: str, command: Command) -> Denied | None:
        """Return None if a user has the right for a command; else the refusal."""
        entitlement = self._guard.entitlements.get(user, NOTHING)
        lacking = missing_right(command.command, entitlement, self._needed)
        if not lacking and entitlement.rights:
            return None
        has = ", ".join(sorted(entitlement.rights)) or "nothing"
        return Denied(
            f"{self._guard.kind} {self._guard.entity}: {command.command} takes the entitlement {lacking or 'read'}; "
            f"{user} has {has} there. Whoever keeps lapse.toml can grant it: users.{user}.entitlements",
            "entitlement",
        )

    def _is_right(self, signed: Signed, record: Any) -> bool:
        keys = self._guard.keys.get(signed.user, ()) if signed.user else self._guard.worker_keys
        return signature.is_right(signed, keys, self._topic, self._partition, record.value or b"")

    def _counted(self, refusal: CommandError) -> CommandError:
        if isinstance(refusal, Denied):
            self.denied[refusal.cause] += 1
        return refusal


_NEEDED: Final = {"queue": QUEUE_RIGHTS, "SOW topic": SOW_RIGHTS, "deployment": DEFINITION_RIGHTS}
_SIGN: Final = "Sign commands as docs/security.md says; the Python client does with LAPSE_USER and LAPSE_SECRET"
CAUSES: Final = ("unsigned", "unknown_user", "signature", "stale", "repeated", "entitlement", "shard_message")
"""Causes for which a record of the commands topic is refused."""

_CODES: Final = {
    "stale": ErrorCode.SIGNATURE_EXPIRED,
    "repeated": ErrorCode.SENT_BEFORE,
    "entitlement": ErrorCode.FORBIDDEN,
}

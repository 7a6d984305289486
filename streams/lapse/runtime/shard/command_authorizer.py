"""The authorizer of a shard: who sends a command, and whether they may (X4).

Where users are configured, every name that a client chooses, of a subscription or of a command, stands behind its
user's: `alice/worker-17`. So names of two users are never the same, and an output to a name reaches its user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from lapse.core.entitlement import DEFINITION_RIGHTS, NOTHING, QUEUE_RIGHTS, SOW_RIGHTS, Entitlement, Right, missing
from lapse.core.error_code import ErrorCode
from lapse.core.used_signature import VALID_MS, UsedSignatures, is_valid
from lapse.protocol import command as commands
from lapse.protocol import signature, topic
from lapse.protocol.command import Command, CommandError, Encoding
from lapse.protocol.signature import Signed

_OWN: Final = "/"
"""Stands between a user and the name that they chose; a user's name has none."""

Headers = list[tuple[str, bytes]]


class Admitted(NamedTuple):
    """A command that may be carried out.

    Attributes:
        command: the command.
        encoding: how its answer is to be written.
        row_filter: what its user may see and touch at most, an expression; None = all.
        at_ms: its instant, ms since the epoch.
        offset: where it stands on the commands topic.
    """

    command: Command
    encoding: Encoding
    row_filter: str | None
    at_ms: int
    offset: int


def admit_all(record: Any) -> Admitted:
    """Read a command where no users are configured: everybody may do everything.

    Raises:
        CommandError: it cannot be read.
    """
    return Admitted(*commands.decode(record.value), None, record.timestamp, record.offset)


class Denied(CommandError):
    """A command whose sender may not do this, or is not who they say.

    Attributes:
        cause: which of the two, in a message.
    """

    def __init__(self, message: str, cause: str, encoding: Encoding = "json") -> None:
        super().__init__(message, encoding)
        self.cause = cause
        self.code = _CODES.get(cause, ErrorCode.UNAUTHENTICATED)


def whose(record: Any) -> str:
    """The user that a command names as its sender, true or not; empty if none."""
    return signature.read(record.headers).user


def of_user(user: str, name: str) -> str:
    """A name that a user has chosen, as shards know it."""
    return f"{user}{_OWN}{name}"


def parted(name: str) -> tuple[str, str]:
    """The user to whom a name belongs, and the name as they chose it."""
    user, _, own = name.partition(_OWN)
    return user, own


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may do what with one entity: what its authorizers go by.

    Attributes:
        entity: its name.
        kind: `queue`, `SOW topic` or `deployment`, for people.
        keys: of every user of the deployment.
        entitlements: of those who have one.
        worker_keys: with which shards sign what they say to each other.
        now_ms: the broker's clock.
    """

    entity: str
    kind: str
    keys: Mapping[str, tuple[bytes, ...]] = field(repr=False)
    entitlements: Mapping[str, Entitlement]
    worker_keys: tuple[bytes, ...] = field(repr=False)
    now_ms: Callable[[], int]

    @property
    def deliveries(self) -> list[str]:
        """The topics on which its shards speak to users."""
        return [topic.deliveries(self.entity, user) for user in self.entitlements]


class CommandAuthorizer:
    """Stands before the commands of one shard.

    Args:
        guard: who may do what.
        partition: the shard.

    Attributes:
        denied: commands that were refused, by cause.
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
        """Those who have any right here, and so a topic of their own."""
        return self._guard.entitlements.keys()

    def remember(self, records: Iterable[Any]) -> None:
        """Read what counted before a take-over, so that none of it counts again."""
        for record in records:
            signed = signature.read(record.headers)
            if signed.signature and self._is_right(signed, record) and is_valid(signed.at_ms, record.timestamp):
                self._used.use(signed.signature, record.timestamp)

    def read(self, record: Any) -> Admitted:
        """Read a command, and see whether it may be carried out.

        Raises:
            CommandError: it cannot be read.
            Denied: its sender is not who they say, or may not do this.
        """
        signed = signature.read(record.headers)
        denied = self._identify(signed, record)
        # Only a known user has a topic of their own to be answered on.
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
        """Sign what this shard says to another one."""
        key = self._guard.worker_keys[0]
        return signature.headers(key, "", self._topic, partition, self._guard.now_ms(), value)

    def is_sealed(self, record: Any) -> bool:
        """Whether a message comes from a shard, and was not said before."""
        signed = signature.read(record.headers)
        sealed = not signed.user and self._is_right(signed, record) and is_valid(signed.at_ms, record.timestamp)
        sealed = sealed and self._used.use(signed.signature, record.timestamp)
        if not sealed:
            self.denied["shard_message"] += 1
        return sealed

    def ended(self, subscription: str, row_filter: str | None) -> str:
        """Why a subscription that was there at a take-over may not stay; empty = it may."""
        user, _ = parted(subscription)
        entitlement = self._guard.entitlements.get(user, NOTHING)
        if Right.READ not in entitlement.rights:
            return f"{user or 'nobody'} may not read {self._guard.entity} any more"
        if (row_filter or None) != entitlement.row_filter:
            return f"what {user} may read of {self._guard.entity} has changed"
        return ""

    def _identify(self, signed: Signed, record: Any) -> Denied | None:
        """See whether a command is from who it says, now and for the first time."""
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
        """See whether a user may do what they ask."""
        entitlement = self._guard.entitlements.get(user, NOTHING)
        lacking = missing(command.command, entitlement, self._needed)
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
"""Why a command is refused at the door."""

_CODES: Final = {
    "stale": ErrorCode.SIGNATURE_EXPIRED,
    "repeated": ErrorCode.SENT_BEFORE,
    "entitlement": ErrorCode.FORBIDDEN,
}

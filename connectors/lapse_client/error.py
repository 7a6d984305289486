"""All exceptions of the client. Each text says what to do next.

LapseError
├── ConnectionFailed       the cluster cannot be reached, or refuses this client
├── UnknownEntity          no queue, SOW topic or topic has this name; the text names those that exist
├── InvalidPayload         a payload does not fit the serde or its type (also a ValueError)
│   └── UnresolvedSchema   the registry does not know its schema, or the reader's schema cannot read it
├── InvalidPublication     a publication was refused before anything was sent (also a ValueError)
├── PublishFailed          Kafka did not accept a record; carries topic, key and cause
├── CommandFailed          a shard refused a command; carries its answer
├── EntityDeleted          the queue or SOW topic was deleted while it was used
├── NoRecord               Kafka has no record at this bookmark, or has it no longer
├── RedriveUnfinished      a redrive of the same letters by Spark has begun and not ended
├── NoReply                no reply to a request came in time (also a TimeoutError)
├── AnswerTimeout          one or more shards did not answer in time (also a TimeoutError)
├── TransactionFailed      outputs and acknowledgment were not committed, or the outcome is unknown
├── AlreadySettled         this delivery was settled before
├── Closed                 the object is closed, or was never started
├── OtherEventLoop         the object was started in another event loop (also a RuntimeError)
└── OtherProcess           the object was opened before a fork, by the parent process (also a RuntimeError)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from lapse.core.error_code import ErrorCode
from lapse.core.near_name import nearest
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command

_NAMES_SHOWN = 20
_FEW_NAMES = 5

_LACKS_RIGHT = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


class LapseError(Exception):
    """The base of all errors of the client. They can be pickled, so process pools can pass them on."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as its text and attributes, because its constructor's arguments are not kept."""
        return _unpickle, (type(self), self.args, self.__dict__)


def _unpickle(kind: type[LapseError], args: tuple[Any, ...], attributes: dict[str, Any]) -> LapseError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(attributes)
    return error


class ConnectionFailed(LapseError):
    """The cluster cannot be reached, or refuses this client.

    Attributes:
        refused: whether a broker answered and rejected the login or certificate. Then waiting does not help.
    """

    def __init__(self, servers: str, cause: object, refused: bool = False) -> None:
        self.refused = refused
        reason = cause.args[0] if isinstance(cause, KafkaException) and cause.args else cause
        why = reason.str().rstrip(".") if isinstance(reason, KafkaError) else reason
        if isinstance(reason, KafkaError) and reason.code() in _LACKS_RIGHT:
            super().__init__(
                f"Kafka at {servers} refuses this user: {why}. Have the right granted that docs/operations.md, Rights, "
                "names, or connect as another user"
            )
            return
        is_option = isinstance(reason, KafkaError) and reason.code() == KafkaError._INVALID_ARG
        mend = (
            "Correct this option of librdkafka, or the file that it names"
            if is_option
            else "Correct the TLS and SASL options: user, password, mechanism, certificates"
            if refused
            else "Check that the broker runs, that KAFKA_BOOTSTRAP_SERVERS names it, and the TLS and SASL options"
        )
        super().__init__(f"no connection to Kafka at {servers}: {why}. {mend}")

    def with_unanswered(self, command: str) -> ConnectionFailed:
        """Return this error, with a word on a command that was sent and not answered; empty = none was sent."""
        self.args = (f"{self}{_what_is_left(command, _MAY_COME)}",)
        return self


class UnknownEntity(LapseError):
    """No entity or topic has this name.

    Attributes:
        name: the name that was asked for.
        known: the names that exist, sorted.

    Args:
        what: the kind, such as `queue`.
        name: see above.
        known: the names that exist.
        hidden: topics that would show whether it exists, and that the brokers hide from this user.
        other: the kind that does have this name, such as `SOW topic`; empty if none has it.
        cause: why it is missing, where that is known and other names are no help; empty otherwise.
    """

    def __init__(
        self,
        what: str,
        name: str,
        known: Iterable[str],
        hidden: Sequence[str] = (),
        other: str = "",
        *,
        cause: str = "",
    ) -> None:
        self._what, self._hidden, self._other, self._cause = what, hidden, other, cause
        self.name = name
        self.known = tuple(sorted(known))
        if hidden:
            super().__init__(
                f"{what} {name!r}: the brokers do not let this user see {', '.join(hidden)}, if it is there. Have "
                "Describe on it granted (docs/operations.md, Rights), correct the name, or connect as another user"
            )
            return
        if cause:
            super().__init__(f"there is no {what} {name!r} on this cluster: {cause}")
            return
        close = nearest(name, self.known)
        meant = f"it is a {other}; " if other else f"did you mean {close!r}? " if close else ""
        shown = ", ".join(self.known[:_NAMES_SHOWN]) + (" …" if len(self.known) > _NAMES_SHOWN else "")
        # Beside the name that was meant, a long list is noise.
        listed = "" if close and not other and len(self.known) > _FEW_NAMES else f"there is: {shown or 'none'}. "
        super().__init__(
            f"there is no {what} {name!r} on this cluster; {meant}{listed}"
            "Correct the name, or configure it in lapse.toml and run `lapse apply`"
        )

    @property
    def is_hidden(self) -> bool:
        """Whether it may exist, and the brokers hide it from this user."""
        return bool(self._hidden)

    def among(self, sees: Callable[[str], bool]) -> UnknownEntity:
        """Return the error with only those known names that a user may see (X4)."""
        return UnknownEntity(
            self._what, self.name, filter(sees, self.known), self._hidden, self._other, cause=self._cause
        )


class InvalidPayload(LapseError, ValueError):
    """A payload does not fit the serde or its type; the text says where."""


class UnresolvedSchema(InvalidPayload):
    """A payload cannot be read with the schemas that there are: the fault may be the registry's, or the reader's."""


class InvalidPublication(LapseError, ValueError):
    """A publication is not valid, or could not be carried out as asked; nothing was sent."""


class PublishFailed(LapseError):
    """Kafka did not accept a record.

    Attributes:
        topic: the topic that the record was meant for; empty if several records are unsent.
        key: the record's key.
        failures: how many records failed since the last report, this one included.
        kafka_error: Kafka's name of the error, such as `MSG_SIZE_TOO_LARGE`; empty if the error is not Kafka's.
    """

    def __init__(self, topic: str, key: bytes | None, cause: object, failures: int = 1) -> None:
        self.topic = topic
        self.key = key
        self.failures = failures
        more = f" (and {failures - 1} more records)" if failures > 1 else ""
        granted = "Have Write on it granted (docs/operations.md, Rights), and publish again"
        error = cause.args[0] if isinstance(cause, KafkaException) and cause.args else cause
        self.kafka_error: str = error.name() if isinstance(error, KafkaError) else ""
        why = f"{error.str().rstrip('.')} ({error.name()})" if isinstance(error, KafkaError) else cause
        remedy = "Publish again when that is mended"
        if self.kafka_error.endswith("AUTHORIZATION_FAILED"):
            remedy = granted
        elif self.kafka_error == "MSG_SIZE_TOO_LARGE":
            remedy = "Publish smaller ones, or raise max.message.bytes of the topic and message.max.bytes of the client"
        which = f"topic {topic}, key {key!r}: not published{more}" if topic else "not published"  # "" = several
        super().__init__(f"{which}: {why}. {remedy}")


class CommandFailed(LapseError):
    """A shard refused a command.

    Attributes:
        answer: the shard's answer.
        code: the kind of refusal: one of `lapse.core.error_code.ErrorCode`, or a newer worker's code. Programs
            should act on this code, not on the text.
    """

    def __init__(self, entity: str, answer: Answer) -> None:
        self.answer = answer
        self.code = answer.code
        super().__init__(f"{entity}, shard {answer.partition}: {answer.command} refused: {answer.error}")


class EntityDeleted(LapseError):
    """The entity was deleted.

    Attributes:
        topics_removed: whether only the removal of its topics shows this. Then an answer may have been lost with them.
    """

    def __init__(self, entity: str, why: str, *, topics_removed: bool = False) -> None:
        super().__init__(f"{entity}: {why}")
        self.topics_removed = topics_removed

    @classmethod
    def by_topics(cls, entity: str) -> EntityDeleted:
        """Return the error for an entity whose topics are gone."""
        return cls(entity, "it is no more, and its topics are removed", topics_removed=True)


def refusal(entity: str, answer: Answer) -> CommandFailed | EntityDeleted:
    """Return the error for an answer that refuses a command."""
    return EntityDeleted(entity, answer.error) if answer.code == ErrorCode.DELETED else CommandFailed(entity, answer)


def too_large(entity: str, partition: int, command: Command) -> CommandFailed:
    """Return the error for a command that is larger than Kafka, or a worker, takes. It was not sent."""
    why = "it is larger than a record of its topic may be. Name fewer keys, payloads or bookmarks in one call"
    asked, code = command.command, ErrorCode.INVALID_ARGUMENT
    return CommandFailed(
        entity, Answer(id="", command=asked, status="error", error=why, partition=partition, code=code)
    )


_LEAVES_NOTHING = frozenset({"depth", "sow", "subscriptions", "heartbeat"})
"""Commands that change nothing at the shard. A client that gives up a subscribe command takes it back."""

_MAY_BE_DONE = ". The command is in the log: one that runs later carries it out"
_MAY_COME = ". The command may still be carried out when the brokers answer again"


def _what_is_left(command: str, text: str) -> str:
    """Return a text about a command that was sent and not answered; empty if it changes nothing, or is taken back."""
    return "" if not command or command in _LEAVES_NOTHING or "subscribe" in command else text


def after_silence(lacking: Sequence[str] = (), user: str = "") -> str:
    """Return what to do about an entity that does not answer.

    Args:
        lacking: its own topics that are missing.
        user: the user of lapse who asked; empty = none.
    """
    if not lacking:
        return f"Start a worker (`lapse worker`), or see the log of the running one{if_unknown(user)}"
    several = len(lacking) > 1
    return (
        f"No worker can serve it without its topic{'s' if several else ''} {', '.join(lacking)}, which "
        f"{'are' if several else 'is'} missing. `lapse apply` creates {'them' if several else 'it'}"
    )


def if_unknown(user: str) -> str:
    """Return a sentence, behind another one, about a user of lapse whom nobody answers; empty if there is no user."""
    return f". Workers do not answer a user who is in no lapse.toml: check that {user} is in theirs" if user else ""


class AnswerTimeout(LapseError, TimeoutError):
    """One or more shards did not answer a command in time.

    Args:
        entity: the queue or SOW topic.
        command: name of the command.
        partitions: partitions of the shards that have not answered.
        seconds: how long the client waited, in seconds.
        sent: whether the command itself was sent; False if only the check for a worker was.
        lacking: the entity's own topics that are missing, so that no worker can serve it.
        user: the user of lapse who asked; empty = none.
    """

    def __init__(
        self,
        entity: str,
        command: str,
        partitions: Iterable[int],
        seconds: float,
        sent: bool = True,
        lacking: Sequence[str] = (),
        user: str = "",
    ) -> None:
        where = ", ".join(str(partition) for partition in sorted(partitions))
        left = _what_is_left(command if sent else "", _MAY_BE_DONE)
        self.lacking = tuple(lacking)
        remedy = after_silence(lacking, user)
        super().__init__(f"{entity}: no answer to {command} from shard {where} within {seconds:g} s. {remedy}{left}")


class NoRecord(LapseError):
    """Kafka has no record at a bookmark yet, or has it no longer."""


class RedriveUnfinished(LapseError):
    """Letters were not sent, because a redrive of them by Spark has begun and not ended (C58)."""


class NoReply(LapseError, TimeoutError):
    """No reply to a request came in time. It is unknown whether a consumer has processed the request."""

    def __init__(self, to: str, seconds: float) -> None:
        super().__init__(
            f"{to}: no reply within {seconds:g} s. Check that a consumer runs that replies, and is quick enough"
        )


class TransactionFailed(LapseError):
    """A transaction was not committed. Its outputs are not visible, and its messages are delivered again.

    Attributes:
        outcome_unknown: whether it may be committed after all, because Kafka has not answered. Outputs and
            acknowledgments agree in either case: the client that gets the messages next finds out.
    """

    def __init__(self, why: str, *, outcome_unknown: bool = False) -> None:
        self.outcome_unknown = outcome_unknown
        super().__init__(f"transaction: {why}")


class AlreadySettled(LapseError):
    """The delivery was settled before; only its first settlement counts."""

    def __init__(self, bookmark: object, how: str) -> None:
        super().__init__(f"{bookmark} is settled already ({how}); settle a delivery once")


class Closed(LapseError):
    """The object is closed or was never started."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is closed; open it with `with`, or call start(), and use it before close()")


class OtherEventLoop(LapseError, RuntimeError):
    """The object was started in another event loop."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} belongs to the event loop that started it. Open one in each loop, inside the coroutine that "
            "`asyncio.run` gets, or do all the work in one loop"
        )


class OtherProcess(LapseError, RuntimeError):
    """The object was opened by another process, from which this one was forked."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} belongs to the process that opened it, and this one was forked from it. Open one in each process, "
            "after the fork"
        )

"""The `Admin` client: creates, changes and deletes queues and SOW topics of a running deployment (Q23, C64 to C67)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import orjson

from lapse.protocol import topic
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.error import AnswerTimeout, CommandFailed, ConnectionFailed, EntityDeleted, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.span import span
from lapse_client.payload.not_a_number import unwritable_number
from lapse_client.queue.queue import Queue
from lapse_client.session.client import Client
from lapse_client.session.listener import Listener
from lapse_client.session.session import Session
from lapse_client.sow.sow_client import SowClient

DEFAULT_DEPLOYMENT: Final = "lapse"
"""The default of `app_id` in lapse.toml."""


@dataclass(frozen=True, slots=True)
class Defined:
    """The result of creating or changing an entity.

    Attributes:
        name: name of the entity.
        version: version of its definition, from now on.
        changed: whether the command changed something; False if the definition was the same already.
        shards: how many shards it has.
        late: shards that do not serve this version yet, as `<entity>:<partition>`. They follow by themselves.
    """

    name: str
    version: int
    changed: bool
    shards: int
    late: tuple[str, ...] = ()


class Admin(Client[None]):
    """Creates, changes and deletes queues and SOW topics while the workers run; a context manager.

    The deployment must keep its definitions on a topic. It does so unless lapse.toml has `definitions = "file"`.
    If users are configured, creating and changing require the right `create` on the name
    (docs/entities-at-run-time.md).

    Args:
        deployment: name of the deployment: `app_id` in the workers' lapse.toml.
        connection: connection to the cluster; from the environment by default.
        timeout_s: how long to wait for answers, in seconds.
    """

    def __init__(
        self, deployment: str = DEFAULT_DEPLOYMENT, *, connection: Connection | None = None, timeout_s: float = 30.0
    ) -> None:
        super().__init__(f"the administrator of {deployment}", connection, timeout_s)
        self.deployment = deployment

    def create_queue(self, name: str, **settings: Any) -> Defined:
        """Create a queue and its missing topics. Return when all its shards serve it, or after two seconds.

        A queue that exists with the same settings is left alone. So a program may create its queues at each start.

        Args:
            name: name of the queue.
            settings: settings as in lapse.toml: `lease_period="30s"`, `topics=["a", "b"]`, `retry={"delay": "10s"}`.

        Raises:
            CommandFailed: the command was refused; `code` and the text say why.
            AnswerTimeout: no worker answered.
        """
        return self._define("create_queue", name, settings)

    def alter_queue(self, name: str, *, version: int | None = None, **settings: Any) -> Defined:
        """Change settings of a queue. Settings that are not named stay.

        Args:
            name: name of the queue.
            version: the expected version of its definition. If it has another one, the command is refused.
            settings: the new values. None sets the default again. A dictionary is merged with the present one.

        Raises:
            CommandFailed: the command was refused; `code` and the text say why.
            AnswerTimeout: no worker answered.
        """
        return self._define("alter_queue", name, settings, version)

    def delete_queue(self, name: str, *, force: bool = False) -> dict[str, int]:
        """Delete a queue, and wait until its topics are gone; see `Queue.delete`.

        A queue that no worker can serve is deleted by `lapse queue delete NAME --force` only, which needs lapse.toml.
        """
        self._live()
        with (
            self._unserved(name, "queue delete"),
            Queue(name, connection=self._connection, timeout_s=self._timeout_s) as queue,
        ):
            return queue.delete(force=force)

    def create_sow_topic(self, name: str, **settings: Any) -> Defined:
        """Create a SOW topic; see `create_queue`."""
        return self._define("create_sow", name, settings)

    def alter_sow_topic(self, name: str, *, version: int | None = None, **settings: Any) -> Defined:
        """Change settings of a SOW topic; see `alter_queue`."""
        return self._define("alter_sow", name, settings, version)

    def delete_sow_topic(self, name: str, *, force: bool = False) -> dict[str, int]:
        """Delete a SOW topic, and wait until its topics are gone; see `SowClient.delete_topic` and `delete_queue`."""
        self._live()
        with (
            self._unserved(name, "sow delete-topic"),
            SowClient(name, connection=self._connection, timeout_s=self._timeout_s) as client,
        ):
            return client.delete_topic(force=force)

    @contextmanager
    def _unserved(self, name: str, command: str) -> Iterator[None]:
        """Say how to delete an entity that is defined, and that no worker can serve.

        Raises:
            LapseError: it is such an entity.
        """
        try:
            yield
        except LapseError as error:
            unrelated = isinstance(error, CommandFailed | ConnectionFailed | EntityDeleted) or (
                isinstance(error, AnswerTimeout) and not error.lacking
            )
            if unrelated or not self._is_defined(name):
                raise
            raise LapseError(
                f"{name} is defined, and cannot be served, so no worker can delete it. `lapse apply` creates what is "
                f"missing. Or `lapse {command} {name} --force`, with the deployment's lapse.toml, deletes it with all "
                "that is in it"
            ) from error

    def _is_defined(self, name: str) -> bool:
        definitions, found = topic.definitions(self.deployment), False
        topics = self._connection.partitions(definitions)
        for message in span(self._connection, {one: topics[one] for one in (definitions,) if one in topics}):
            if message.key() == name.encode():
                found = message.value() is not None
        return found

    def _define(self, command: str, name: str, settings: dict[str, Any], version: int | None = None) -> Defined:
        try:
            written = orjson.dumps(settings, option=orjson.OPT_NON_STR_KEYS)
        except TypeError as error:
            raise ValueError(f"settings of {name}: {error}; give texts, numbers, lists and dictionaries") from error
        if (place := unwritable_number(settings, written)) is not None:  # as null it would set the default
            raise ValueError(f"settings of {name}: {place} is NaN or infinite, which JSON cannot say")
        request = Command.of(command=command, entity=name, settings=written.decode(), version=version)
        answer: Answer
        (answer,) = self._live().ask([0], request, self._timeout_s)
        figures = answer.counts
        return Defined(name, figures["version"], bool(figures["changed"]), figures["shards"], answer.late)

    def _open(self) -> None:
        definer = topic.definer(self.deployment)
        needed = {topic.commands(definer), self._connection.deliveries(definer)}
        if missing := needed - self._connection.partitions(*needed).keys():
            user = f", and user {self._connection.user} the right to create something" if self._connection.user else ""
            raise LapseError(
                f"deployment {self.deployment}: there is no topic {', '.join(sorted(missing))}, or it may not be seen. "
                f'Its lapse.toml needs app_id = "{self.deployment}", not definitions = "file"{user}; then run '
                "`lapse apply`"
            )
        self._session = Session(self._connection, [(definer, 1)], self._lifecycle)
        self._session.open(Listener(), self._timeout_s)

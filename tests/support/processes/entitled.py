"""Deployments with users, their keys and their entitlements."""

from collections.abc import Mapping
from typing import Any

import tomlkit

from lapse_client import Queue, QueueSubscriber, SowClient
from lapse_client.kafka.connection import Connection
from support.processes.deployment import Deployment, Settings


class Entitled(Deployment):
    """A deployment with `[users]`; set `users` before `apply`.

    In names of entities under `entitlements`, `{}` is replaced by the token of this deployment, as in `Deployment`.
    """

    users: Mapping[str, Settings] = {}
    security: Mapping[str, str] = {}

    def configure(
        self, queues: Mapping[str, Settings], sow: Mapping[str, Settings] | None = None, **lapse: Any
    ) -> None:
        """Write `lapse.toml` with the current `users`."""
        super().configure(queues, sow, **lapse)
        if not self.users:
            return
        (self.directory / "worker.key").write_text("the key of the workers\n")
        users: dict[str, Any] = {}
        for name, settings in self.users.items():
            (self.directory / f"{name}.key").write_text(f"{self.secret(name)}\n")
            users[name] = {"key_file": f"{name}.key", **self.named(settings)}
        for file in self.directory.glob("*.key"):
            file.chmod(0o600)
        tables = {"security": {"worker_key_file": "worker.key", **self.security}, "users": users}
        self.config.write_text(f"{self.config.read_text('utf-8')}\n{tomlkit.dumps(tables)}", "utf-8")

    def secret(self, user: str) -> str:
        """Return the key of a user."""
        return f"the secret key of {user}, {self.token}"

    def as_user(self, user: str, secret: str = "") -> Connection:
        """Return a connection of a user."""
        return Connection(self.servers, self.options(user), user=user, secret=secret or self.secret(user))

    def options(self, user: str) -> dict[str, str]:
        """Return a user's options for Kafka."""
        return {}

    def queue_of(self, user: str, stem: str) -> Queue:
        """Return a user's client of a queue, not started."""
        return Queue(self.name(stem), connection=self.as_user(user))

    def subscriber_of(self, user: str, stem: str, max_backlog: int = 10, **options: Any) -> QueueSubscriber:
        """Return a user's subscriber, not started."""
        return QueueSubscriber(self.name(stem), max_backlog, connection=self.as_user(user), **options)

    def sow_of(self, user: str, stem: str) -> SowClient:
        """Return a user's client of a SOW topic, not started."""
        return SowClient(self.name(stem), connection=self.as_user(user))

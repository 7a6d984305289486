"""The state that all requests share: clients, subscriptions, users and the shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from lapse_client import Connection
from lapse_gateway.clients import Clients
from lapse_gateway.console.entities import Entities
from lapse_gateway.console.glance import Glances
from lapse_gateway.console.watch import Watch
from lapse_gateway.figures import Figures
from lapse_gateway.metrics import RequestFigures
from lapse_gateway.rate import RateLimit
from lapse_gateway.settings import Settings
from lapse_gateway.subscription import Subscriptions
from lapse_gateway.user import Authenticator, Users

_SWEEP_S: Final = 1.0

log = logging.getLogger("lapse_gateway")


class Gateway:
    """The state that all requests about one deployment share.

    Args:
        connection: the gateway's own connection to the cluster.
        settings: settings of the gateway.
        users: users that it admits; without users, it admits everybody.
        name: name of the deployment, for people.
        at: prefix of its paths; empty for the first deployment.

    Attributes:
        deployments: all deployments at this address. The first one's paths have no prefix.
    """

    def __init__(
        self, connection: Connection, settings: Settings, users: Users, *, name: str = "lapse", at: str = ""
    ) -> None:
        self.name = name
        self.at = at
        self.deployments: Sequence[Gateway] = (self,)
        self.glances = Glances()
        self.connection = connection
        self.settings = settings
        self.users = users
        self.authenticator = Authenticator(connection, users)
        self.rate = RateLimit(settings.rate, lambda: asyncio.get_running_loop().time())
        self.clients = Clients(settings.answer_timeout_s)
        self.subscriptions = Subscriptions(settings.most_subscriptions, settings.idle_s, settings.answer_timeout_s)
        self.entities = Entities(connection.partitions)
        self.watch = Watch(self.clients)
        self.topics = Watch(self.clients, sow=True)
        self.figures = Figures(settings.figures)
        self.requests = RequestFigures()
        self.stopping = asyncio.Event()
        self.streams = 0
        """Number of open SOW streams, which have the same limit as subscriptions."""
        self.tails = 0
        """Number of open streams of events."""

    def beside(self, others: Sequence[Gateway]) -> None:
        """Serve other deployments at the same address."""
        everybody = (self, *others)
        for one in everybody:
            one.deployments = everybody

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sweep idle clients and subscriptions during the block. At its end return all leases and flush publishers."""
        sweeping = asyncio.create_task(self._sweep())
        try:
            yield
        finally:
            self.stopping.set()
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
            await asyncio.gather(self.subscriptions.close(), self.clients.sweep(0))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                await self.subscriptions.sweep()
                await self.clients.sweep()
            except Exception:  # the next sweep tries again, and requests go on
                log.exception("idle clients could not be closed")

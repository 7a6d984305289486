"""An overview of the other deployments of the gateway: how many of their queues need attention."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import Final

from lapse_client.error import LapseError
from lapse_gateway import looking
from lapse_gateway.console.glance import Glance
from lapse_gateway.fault import Fault
from lapse_gateway.gateway import Gateway
from lapse_gateway.operation import Call

_PATIENCE_S: Final = 10.0
"""After this time without an answer, in seconds, a cluster is shown as not answering."""


async def others(call: Call, patience_s: float) -> list[Glance]:
    """Return what is known of each other deployment after at most `patience_s` seconds."""
    gateway, who = call.gateway, call.caller.name
    beside = [one for one in gateway.deployments if one is not gateway]
    asks = {(one.name, who): functools.partial(_look, call, one) for one in beside}
    known = await gateway.glances.look(asks, patience_s)
    return [known.get((one.name, who)) or _unknown(one) for one in beside]


async def _look(call: Call, gateway: Gateway) -> Glance:
    """Look at one deployment with the key that the caller has sent."""
    try:
        caller = gateway.authenticator.caller(call.request.headers.get("authorization"))
    except Fault:
        return _unknown(gateway, "it has other users; open it to say who you are")
    try:
        async with asyncio.timeout(_PATIENCE_S):
            names = await looking.names(replace(call, gateway=gateway, caller=caller), sow=False)
            looks = await gateway.watch.look(caller, names, frozenset(), 0)
    except TimeoutError:
        return _unknown(gateway, "its brokers do not answer")
    except (LapseError, Fault) as error:
        return _unknown(gateway, str(error))
    return replace(
        _unknown(gateway),
        queues=len(names),
        answered=sum(one.at_s >= 0 for one in looks),
        needs=sum(bool(one.needs) for one in looks),
    )


def _unknown(gateway: Gateway, fault: str = "") -> Glance:
    return Glance(name=gateway.name, at=gateway.at, cluster=gateway.connection.bootstrap_servers, fault=fault)

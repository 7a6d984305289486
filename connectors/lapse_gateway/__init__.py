"""The gateway: queues and SOW topics over HTTP, for programs that do not speak Kafka.

It is a separate process on top of the asynchronous client. `lapse gateway` starts it.
"""

from lapse_gateway.application import application
from lapse_gateway.gateway import Gateway
from lapse_gateway.server import CannotListen, serve
from lapse_gateway.settings import Settings
from lapse_gateway.user import User, Users

__all__ = ["CannotListen", "Gateway", "Settings", "User", "Users", "application", "serve"]

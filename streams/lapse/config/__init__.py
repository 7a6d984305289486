"""The configuration in `lapse.toml`: its keys, and its checks with errors that name line and key."""

from lapse.config.document import ConfigError, load, loads
from lapse.config.entity_config import QueueConfig, SowConfig
from lapse.config.root import Config

__all__ = ["Config", "ConfigError", "QueueConfig", "SowConfig", "load", "loads"]

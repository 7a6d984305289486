"""The settings of the Faust application: raw records, no topics of its own, and lapse's stores and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from faust.transport.utils import DefaultSchedulingStrategy

from lapse.config import Config
from lapse.runtime.kafka import security
from lapse.runtime.kafka.group.assignor import SteadyAssignor
from lapse.runtime.kafka.lean_faust import NoSession
from lapse.runtime.kafka.table import SelfRestoredTable, SelfRestoredTables

_POLL_RECORDS: Final = 5_000
_FETCH_BYTES: Final = 4 << 20
_HEARTBEAT_S: Final = 0.2
"""The interval of heartbeats, s. Their answers say that the group rebalances, so partitions that move wait about
this long until all members know (C90). Twenty heartbeats a second were a third of the CPU of an idle worker and its
broker."""


def faust_settings(config: Config) -> dict[str, Any]:
    """Return the settings of the Faust application, by Faust's names."""
    worker = config.lapse
    session_s = worker.session_timeout / 1000
    return {
        "broker": ";".join(f"kafka://{server.strip()}" for server in worker.brokers.split(",")),
        "broker_credentials": security.for_faust(config.security),
        "store": store_url(config),
        "datadir": str(Path(worker.data_dir).absolute()),
        "autodiscover": False,
        "key_serializer": "raw",
        "value_serializer": "raw",
        "topic_disable_leader": True,
        "topic_allow_declare": False,
        "web_enabled": False,
        "table_standby_replicas": 0,
        "recovery_consistency_check": False,
        "consumer_auto_offset_reset": "earliest",
        "consumer_max_fetch_size": _FETCH_BYTES,
        "broker_max_poll_records": _POLL_RECORDS,
        "broker_session_timeout": session_s,
        "broker_heartbeat_interval": min(session_s / 3, _HEARTBEAT_S),
        "broker_request_timeout": max(30.0, 2 * session_s),
        "broker_rebalance_timeout": 60.0,
        "broker_commit_interval": 1.0,
        "stream_wait_empty": False,
        "stream_buffer_maxsize": 4096,
        "HttpClient": NoSession,
        "ConsumerScheduler": DefaultSchedulingStrategy,
        "PartitionAssignor": SteadyAssignor,
        "Table": SelfRestoredTable,
        "TableManager": SelfRestoredTables,
    }


def store_url(config: Config) -> str:
    """Return the URL by which Faust finds the store of tables."""
    return f"lapse-{config.lapse.store}://"

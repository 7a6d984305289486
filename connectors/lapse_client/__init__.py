"""The Python client of lapse: publish with lifetimes, receive under leases, query and follow SOW topics.

Everything public is importable from here; `lapse_client.aio` has the same names for asyncio.
"""

from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import Event
from lapse_client.admin import Admin, Defined
from lapse_client.avro_serde import AvroSerde
from lapse_client.connection import Connection
from lapse_client.dead_letter import DeadLetter, DeadLetterReader
from lapse_client.delivery import Delivery
from lapse_client.error import (
    AlreadySettled,
    AnswerTimeout,
    Closed,
    CommandFailed,
    ConnectionFailed,
    EntityDeleted,
    InvalidPayload,
    InvalidPublication,
    LapseError,
    NoRecord,
    NoReply,
    OtherEventLoop,
    PublishFailed,
    TransactionFailed,
    UnknownEntity,
)
from lapse_client.event_reader import EventReader
from lapse_client.history import History, history
from lapse_client.json_serde import JsonSerde
from lapse_client.moment import Moment
from lapse_client.publisher import Publisher
from lapse_client.queue import Queue
from lapse_client.replay import Replayed, replay
from lapse_client.reply import Reply
from lapse_client.retry import Retry
from lapse_client.serde import Serde
from lapse_client.settlement import SettlementResult
from lapse_client.sow import SowClient
from lapse_client.sow_record import SowRecord
from lapse_client.sow_subscription import SowSubscription
from lapse_client.subscriber import QueueSubscriber
from lapse_client.task_queue import Task, TaskQueue
from lapse_client.transaction import Transaction

__all__ = [
    "Admin",
    "AlreadySettled",
    "AnswerTimeout",
    "AvroSerde",
    "Bookmark",
    "BookmarkRange",
    "Closed",
    "CommandFailed",
    "Connection",
    "ConnectionFailed",
    "DeadLetter",
    "DeadLetterReader",
    "Defined",
    "Delivery",
    "EntityDeleted",
    "Event",
    "EventReader",
    "History",
    "InvalidPayload",
    "InvalidPublication",
    "JsonSerde",
    "LapseError",
    "Moment",
    "NoRecord",
    "NoReply",
    "OtherEventLoop",
    "PublishFailed",
    "Publisher",
    "Queue",
    "QueueSubscriber",
    "Replayed",
    "Reply",
    "Retry",
    "Serde",
    "SettlementResult",
    "SowClient",
    "SowRecord",
    "SowSubscription",
    "Task",
    "TaskQueue",
    "Transaction",
    "TransactionFailed",
    "UnknownEntity",
    "history",
    "replay",
]

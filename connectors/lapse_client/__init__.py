"""The Python client of lapse: publish with lifetimes, receive under leases, query and follow SOW topics.

Everything public is importable from here; `lapse_client.aio` has the same names for asyncio.
"""

from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import Event
from lapse_client.admin import Admin, Defined
from lapse_client.delivery.delivery import Delivery
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
    OtherProcess,
    PublishFailed,
    RedriveUnfinished,
    TransactionFailed,
    UnknownEntity,
    UnresolvedSchema,
)
from lapse_client.kafka.connection import Connection
from lapse_client.letters.dead_letter import DeadLetter, DeadLetterReader
from lapse_client.payload.avro_serde import AvroSerde
from lapse_client.payload.json_serde import JsonSerde
from lapse_client.payload.serde import Serde
from lapse_client.publisher.publisher import Publisher
from lapse_client.queue.queue import Queue
from lapse_client.reading.event_reader import EventReader
from lapse_client.reading.history import History, history
from lapse_client.reading.moment import Moment
from lapse_client.reading.replay import Replayed, replay
from lapse_client.request.reply import Reply
from lapse_client.sow.record import SowRecord
from lapse_client.sow.sow_client import SowClient
from lapse_client.sow.subscription import SowSubscription
from lapse_client.subscriber.retry import Retry
from lapse_client.subscriber.settlement import SettlementResult
from lapse_client.subscriber.subscriber import QueueSubscriber
from lapse_client.subscriber.task_queue import Task, TaskQueue
from lapse_client.transaction.transaction import Transaction

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
    "OtherProcess",
    "PublishFailed",
    "Publisher",
    "Queue",
    "QueueSubscriber",
    "RedriveUnfinished",
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
    "UnresolvedSchema",
    "history",
    "replay",
]

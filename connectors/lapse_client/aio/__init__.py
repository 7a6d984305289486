"""The client for asyncio, with the same names as `lapse_client`.

Each class holds its synchronous twin, whose background threads do the work. Calls that wait are coroutines here, and
iterators are asynchronous. Settling a delivery never waits, so it is a plain call. `reply` is a coroutine.

::

    async with QueueSubscriber("orders", max_backlog=100) as subscriber:
        async for delivery in subscriber:
            async with delivery:
                await handle(delivery.value)
"""

from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import Event
from lapse_client.admin import Defined
from lapse_client.aio.admin import Admin
from lapse_client.aio.delivery import Delivery
from lapse_client.aio.publisher import Publisher
from lapse_client.aio.queue import Queue
from lapse_client.aio.reading import DeadLetterReader, EventReader, history, replay
from lapse_client.aio.sow import SowClient, SowSubscription
from lapse_client.aio.subscriber import QueueSubscriber
from lapse_client.aio.task_queue import Task, TaskQueue
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
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.payload.avro_serde import AvroSerde
from lapse_client.payload.json_serde import JsonSerde
from lapse_client.payload.serde import Serde
from lapse_client.reading.history import History
from lapse_client.reading.moment import Moment
from lapse_client.reading.replay import Replayed
from lapse_client.request.reply import Reply
from lapse_client.sow.record import SowRecord
from lapse_client.subscriber.retry import Retry
from lapse_client.subscriber.settlement import SettlementResult
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

"""Functions that are called through a queue. Arguments are sent as JSON, and checked on both sides (X3)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, overload

import orjson

from lapse.protocol.bookmark import Bookmark
from lapse_client.argument import check_count
from lapse_client.delivery.delivery import Delivery
from lapse_client.error import InvalidPayload, InvalidPublication, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.payload.shape import Arguments
from lapse_client.publisher.publisher import Publisher
from lapse_client.subscriber.subscriber import QueueSubscriber

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Task(Generic[P, R]):
    """A function of a task queue. A call runs it in this program; `submit` has a consumer of the queue run it.

    Attributes:
        name: name of the task in messages.
        function: the function itself.
        queue: its task queue.
        arguments: types of the function's arguments.
        options: options of `Publisher.publish` for its messages, such as `ttl_ms`.
    """

    name: str
    function: Callable[P, R]
    queue: TaskQueue
    arguments: Arguments
    options: Mapping[str, Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in this program."""
        return self.function(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Bookmark:
        """Publish a call, and return its message's bookmark once Kafka has it.

        Raises:
            InvalidPublication: the arguments do not fit the function; nothing was sent.
            PublishFailed: Kafka did not accept the message.
        """
        return self.begin(*args, **kwargs).result()

    def begin(self, *args: P.args, **kwargs: P.kwargs) -> Future[Bookmark]:
        """Publish a call in the background; see `submit`."""
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
            arguments = self.arguments.to_json(bound.arguments)
        except (TypeError, InvalidPayload) as error:
            raise InvalidPublication(f"task {self.name}: {error}") from error
        value = b'{"task":%b,"arguments":%b}' % (orjson.dumps(self.name), arguments)
        return self.queue.publisher.submit(self.queue.name, value, **self.options)

    def with_options(self, **options: Any) -> Task[P, R]:
        """Return the task with other publish options, such as `ttl_ms`, `enqueue_at_ms`, `key` or `headers`."""
        return replace(self, options={**self.options, **options})


class TaskQueue:
    """Turns functions into tasks of a queue; a context manager.

    ::

        emails = TaskQueue("emails")

        @emails.task
        def send(to: str, text: str) -> None: ...

        send.submit("a@example.org", text="hello")      # here
        emails.run(threads=4)                           # elsewhere

    A message whose arguments do not fit, or whose task is unknown, becomes a dead letter with the cause. If a task
    raises, its message returns to the queue, and is delivered again. `raise Retry(after=30)` sets the delay.

    Args:
        name: name of the queue.
        connection: connection to the cluster; from the environment by default.
        options: options of the `QueueSubscriber`, such as `heartbeat_timeout_ms`.

    Raises:
        TypeError: there is no such option. `max_backlog` is the number of threads of `run`.
        LapseError: pydantic is missing; raised by the first `task`.
    """

    task_type: ClassVar[type[Task[Any, Any]]] = Task

    def __init__(self, name: str, *, connection: Connection | None = None, **options: Any) -> None:
        known = inspect.signature(QueueSubscriber).parameters.keys() - {"queue", "max_backlog", "connection"}
        if unknown := sorted(options.keys() - known):
            raise TypeError(f"option {unknown[0]}: expected one of {', '.join(sorted(known))}")
        self.name = name
        self._connection = connection
        self._options = options
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._publisher: Publisher | None = None
        self._subscribers: set[QueueSubscriber] = set()
        """Those of the calls of `run` that are under way."""
        self._lock = threading.Lock()

    @overload
    def task(self, function: Callable[P, R], /, *, name: str | None = None) -> Task[P, R]: ...

    @overload
    def task(self, /, *, name: str | None = None) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """Turn a function into a task; a decorator, with or without arguments.

        Args:
            function: the function, which may be asynchronous. Its parameters need names, and should have types that
                pydantic knows.
            name: name of the task in messages; the function's name by default.

        Raises:
            LapseError: the queue has a task of this name already, or pydantic is missing.
            TypeError: the function has no name, and none is given; or a parameter is `*args` or `**kwargs`, or has a
                type that pydantic does not know.
        """
        if function is None:
            return lambda decorated: self.task(decorated, name=name)
        named: object = name or getattr(function, "__name__", None)
        if not isinstance(named, str):
            raise TypeError(f"task {function!r}: say by which name messages call it, as in task(name='send')")
        if named in self._tasks:
            raise LapseError(f"queue {self.name} has a task {named} already; give one of them another name")
        self._tasks[named] = made = self.task_type(named, function, self, Arguments(named, function), {})
        return made

    @property
    def publisher(self) -> Publisher:
        """The publisher of its calls, opened at the first use."""
        with self._lock:
            if self._publisher is None or self._publisher.is_forked:
                self._publisher = Publisher(self._connection)
            return self._publisher

    def run(self, threads: int = 1) -> None:
        """Run the queue's tasks in a number of threads, until `close` is called."""
        check_count("threads", threads)
        subscriber = QueueSubscriber(self.name, threads, connection=self._connection, **self._options)
        with self._lock:
            self._subscribers.add(subscriber)
        try:
            with subscriber:
                subscriber.run(self.handle, threads)
        finally:
            with self._lock:
                self._subscribers.discard(subscriber)

    def handle(self, delivery: Delivery) -> None:
        """Run the task that a message names, for programs that receive messages themselves."""
        if (call := self.parse_call(delivery)) is not None and inspect.iscoroutine(done := call()):
            asyncio.run(done)

    def parse_call(self, delivery: Delivery) -> functools.partial[Any] | None:
        """Return the call in a message. Expire a message that is not a valid call, and return None."""
        try:
            function, arguments = self._read(delivery.value)
        except InvalidPayload as error:
            delivery.expire(str(error))
            return None
        return functools.partial(function, **arguments)

    def close(self) -> None:
        """Stop `run`, in all threads, after the running calls, and flush submitted calls."""
        with self._lock:
            subscribers, publisher, self._publisher = list(self._subscribers), self._publisher, None
        for subscriber in subscribers:
            subscriber.stop()
        for subscriber in subscribers:
            subscriber.close()
        if publisher is not None:
            publisher.close()

    def __enter__(self) -> TaskQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, value: bytes | None) -> tuple[Callable[..., Any], dict[str, Any]]:
        try:
            message = orjson.loads(value or b"")
        except ValueError as error:
            raise InvalidPayload(f"no call of a task: {error}") from error
        name = message.get("task") if isinstance(message, dict) else None
        task = self._tasks.get(name) if isinstance(name, str) else None
        if task is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise InvalidPayload(f"no call of a known task: {name!r}; there is: {known}")
        return task.function, task.arguments.from_json(orjson.dumps(message.get("arguments", {})))

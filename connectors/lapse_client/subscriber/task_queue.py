"""Functions that are called through a queue: their arguments travel as JSON, checked on both sides (X3)."""

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
from lapse_client.delivery.delivery import Delivery
from lapse_client.error import InvalidPayload, InvalidPublication, LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.payload.shape import Shape, arguments_of
from lapse_client.publisher.publisher import Publisher
from lapse_client.subscriber.subscriber import QueueSubscriber

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Task(Generic[P, R]):
    """A function of a task queue. Calling it runs it here; submitting it lets a consumer of the queue run it.

    Attributes:
        name: as it stands in messages.
        function: it.
        queue: its task queue.
        options: of its publications, such as `ttl_ms`; those of `Publisher.publish`.
    """

    name: str
    function: Callable[P, R]
    queue: TaskQueue
    shape: Shape
    options: Mapping[str, Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, as if it were no task."""
        return self.function(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Bookmark:
        """Publish a call, and return where its message stands once Kafka has it.

        Raises:
            InvalidPublication: the arguments do not fit the function; nothing was sent.
            PublishFailed: Kafka did not take it.
        """
        return self.begin(*args, **kwargs).result()

    def begin(self, *args: P.args, **kwargs: P.kwargs) -> Future[Bookmark]:
        """Publish a call in the background; see `submit`."""
        try:
            bound = inspect.signature(self.function).bind(*args, **kwargs)
            arguments = self.shape.to_json(bound.arguments)
        except (TypeError, InvalidPayload) as error:
            raise InvalidPublication(f"task {self.name}: {error}") from error
        value = b'{"task":%b,"arguments":%b}' % (orjson.dumps(self.name), arguments)
        return self.queue.publisher.submit(self.queue.name, value, **self.options)

    def with_options(self, **options: Any) -> Task[P, R]:
        """The same task, published with `ttl_ms`, `enqueue_at_ms`, `key`, `headers` and so on."""
        return replace(self, options={**self.options, **options})


class TaskQueue:
    """Turns functions into tasks of a queue; a context manager that closes what it opened.

    ::

        emails = TaskQueue("emails")

        @emails.task
        def send(to: str, text: str) -> None: ...

        send.submit("a@example.org", text="hello")      # here
        emails.run(threads=4)                           # elsewhere

    A message whose arguments do not fit, or whose task is unknown, becomes a dead letter with the cause. A task that
    raises is delivered again as the queue says; `raise Retry(after=30)` sets the delay.

    Args:
        name: the queue's.
        connection: the cluster; from the environment by default.
        options: of the subscriber, such as `heartbeat_timeout_ms`.

    Raises:
        LapseError: pydantic is missing; with the first task.
    """

    task_type: ClassVar[type[Task[Any, Any]]] = Task

    def __init__(self, name: str, *, connection: Connection | None = None, **options: Any) -> None:
        self.name = name
        self._connection = connection
        self._options = options
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._publisher: Publisher | None = None
        self._subscriber: QueueSubscriber | None = None
        self._lock = threading.Lock()

    @overload
    def task(self, function: Callable[P, R], /, *, name: str | None = None) -> Task[P, R]: ...

    @overload
    def task(self, /, *, name: str | None = None) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(self, function: Any = None, /, *, name: str | None = None) -> Any:
        """Make a function a task; a decorator, with or without arguments.

        Args:
            function: its parameters need names and should have types: what pydantic knows. It may be asynchronous.
            name: as it stands in messages; the function's by default.

        Raises:
            LapseError: there is a task of this name, or pydantic is missing.
            TypeError: a parameter is `*args` or `**kwargs`, or of a type that pydantic does not know.
        """
        if function is None:
            return lambda decorated: self.task(decorated, name=name)
        named = name or function.__name__
        if named in self._tasks:
            raise LapseError(f"queue {self.name} has a task {named} already; give one of them another name")
        self._tasks[named] = made = self.task_type(named, function, self, Shape(arguments_of(named, function)), {})
        return made

    @property
    def publisher(self) -> Publisher:
        """What publishes its calls; opened when it is first asked for."""
        with self._lock:
            if self._publisher is None:
                self._publisher = Publisher(self._connection)
            return self._publisher

    def run(self, threads: int = 1) -> None:
        """Work on the queue, until `close`; one call a thread at a time."""
        with self._lock:
            subscriber = QueueSubscriber(self.name, threads, connection=self._connection, **self._options)
            self._subscriber = subscriber
        with subscriber:
            subscriber.run(self.handle, threads)

    def handle(self, delivery: Delivery) -> None:
        """Run the task that a message names; for programs that receive messages by themselves."""
        if (call := self.call_of(delivery)) is not None and inspect.iscoroutine(done := call()):
            asyncio.run(done)

    def call_of(self, delivery: Delivery) -> functools.partial[Any] | None:
        """What a message asks for; None: it is no call that fits, and goes to the dead letters."""
        try:
            function, arguments = self._read(delivery.value)
        except InvalidPayload as error:
            delivery.expire(str(error))
            return None
        return functools.partial(function, **arguments)

    def close(self) -> None:
        """Let `run` end when the running calls are done, and flush submitted calls."""
        with self._lock:
            subscriber, publisher, self._publisher = self._subscriber, self._publisher, None
        if subscriber is not None:
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
        checked = task.shape.from_json(orjson.dumps(message.get("arguments", {})))
        return task.function, {field: getattr(checked, field) for field in checked.model_fields_set}

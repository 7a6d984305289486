"""Wraps the synchronous client in the interface of the asynchronous one, so that one test covers both."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import lapse_client

_END = object()


class _Shaped:
    """A wrapper of a client object that runs each call in a thread."""

    _iterators = frozenset({"messages", "batches", "updates", "query"})
    _plain = frozenset({"name"})

    def __init__(self, one: Any) -> None:
        self._one = one

    async def start(self) -> "_Shaped":
        await asyncio.to_thread(self._one.start)
        return self

    async def __aenter__(self) -> "_Shaped":
        await asyncio.to_thread(self._one.__enter__)
        return self

    async def __aexit__(self, *ended: Any) -> None:
        await asyncio.to_thread(self._one.__exit__, *ended)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _in_a_thread(iter(self._one))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._one, name)
        if name in self._plain:
            return found
        if name in self._iterators:
            return lambda *arguments, **options: _in_a_thread(found(*arguments, **options))

        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(found, *arguments, **options)

        return call


class QueueSubscriber(_Shaped):
    """See `lapse_client.aio.QueueSubscriber`."""

    _plain = frozenset({"name", "acknowledge"})

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(lapse_client.QueueSubscriber(*arguments, **options))

    async def run(self, handler: Callable[[Any], Awaitable[object]], tasks: int = 1) -> None:
        async def await_it(delivery: Any) -> None:
            await handler(delivery)

        await asyncio.to_thread(self._one.run, lambda delivery: asyncio.run(await_it(delivery)), tasks)


class Publisher(_Shaped):
    """See `lapse_client.aio.Publisher`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(lapse_client.Publisher(*arguments, **options))

    async def publish(self, *arguments: Any, **options: Any) -> lapse_client.Bookmark:
        return await asyncio.to_thread(lambda: self._one.submit(*arguments, **options).result(30))


class Queue(_Shaped):
    """See `lapse_client.aio.Queue`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(lapse_client.Queue(*arguments, **options))


class SowClient(_Shaped):
    """See `lapse_client.aio.SowClient`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(lapse_client.SowClient(*arguments, **options))

    def subscribe(self, *arguments: Any, **options: Any) -> _Shaped:
        return _Shaped(self._one.subscribe(*arguments, **options))

    def sow_and_subscribe(self, *arguments: Any, **options: Any) -> _Shaped:
        return _Shaped(self._one.sow_and_subscribe(*arguments, **options))


async def _in_a_thread(iterator: Iterator[Any]) -> AsyncIterator[Any]:
    while (found := await asyncio.to_thread(next, iterator, _END)) is not _END:
        yield found

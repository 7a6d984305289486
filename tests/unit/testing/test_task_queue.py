"""Functions that are called through a queue (X3)."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import pydantic
import pytest

from lapse.testing import Lapse
from lapse_client import InvalidPublication, LapseError, Retry, TaskQueue, aio

pytestmark = pytest.mark.feature("X3", "X8")


class Customer(pydantic.BaseModel):
    """An argument that has a type of its own."""

    name: str
    born: date | None = None


@contextmanager
def working(tasks: TaskQueue, threads: int = 1) -> Iterator[None]:
    thread = threading.Thread(target=tasks.run, args=[threads])
    thread.start()
    try:
        yield
    finally:
        tasks.close()
        thread.join(20)


@pytest.fixture
def tasks(lapse: Lapse) -> TaskQueue:
    lapse.queue("emails", expiration="enabled", max_deliveries=2, dead_letter="dlq.emails")
    return TaskQueue("emails", connection=lapse.connection)


def test_a_call_runs_where_the_queue_is_worked_on(lapse: Lapse, tasks: TaskQueue) -> None:
    done: list[Any] = []

    @tasks.task
    def greet(to: Customer, text: str = "hello", *, times: int = 1) -> None:
        done.append((to, text, times))

    @tasks.task
    async def later(number: int) -> None:
        done.append(number)

    greet(Customer(name="here"))
    place = greet.submit(Customer(name="Ann", born=date(2000, 1, 31)), times=2)
    assert (place.topic, place.offset) == ("emails", 0)
    later.with_options(enqueue_at_ms=int(lapse.clock.now_ms) + 60_000).submit(number=7)
    with working(tasks):
        lapse.until(lambda: len(done) == 2)
        assert done == [(Customer(name="here"), "hello", 1), (Customer(name="Ann", born=date(2000, 1, 31)), "hello", 2)]
        lapse.clock.advance(60)
        lapse.until(lambda: len(done) == 3)
    assert done[2] == 7
    assert lapse.depth("emails") == 0


def test_what_raises_comes_again_and_what_does_not_fit_dies(lapse: Lapse, tasks: TaskQueue) -> None:
    tried: list[str] = []

    @tasks.task(name="charge")
    def charge_card(order: int) -> None:
        tried.append(f"charge {order}")
        if order == 1:
            raise KeyError("no such card")
        if len(tried) == 1:
            raise Retry(after=30)

    charge_card.submit(2)
    with working(tasks):
        with lapse.queue_client("emails") as client:
            lapse.until(lambda: client.depth()["delayed"] == 1)
        lapse.clock.advance(30)
        lapse.until(lambda: len(tried) == 2)
        charge_card.submit(1)
        publisher = lapse.publisher()
        for value in (b'{"task": "refund"}', b"no JSON", b"[]", b'{"task": "charge", "arguments": {"order": "x"}}',
                      b'{"task": "charge", "arguments": {"order": 1, "more": 2}}'):  # fmt: skip
            publisher.publish("emails", value)
        lapse.until(lambda: len(lapse.dead_letters("emails")) == 6)
    assert tried == ["charge 2", "charge 2", "charge 1", "charge 1"]
    messages = {letter.value: letter.message for letter in lapse.dead_letters("emails")}
    assert messages[b'{"task": "refund"}'] == "no call of a known task: 'refund'; there is: charge"
    assert messages[b"no JSON"].startswith("no call of a task: ")
    assert messages[b"[]"].startswith("no call of a known task: None")
    assert "order: Input should be a valid integer" in messages[b'{"task": "charge", "arguments": {"order": "x"}}']
    assert (
        "more: Extra inputs are not permitted" in messages[b'{"task": "charge", "arguments": {"order": 1, "more": 2}}']
    )


@pytest.mark.parametrize(
    "call", [lambda task: task.submit(), lambda task: task.submit("x"), lambda task: task.submit(1, b=2)]
)
def test_a_call_that_does_not_fit_is_not_sent(lapse: Lapse, tasks: TaskQueue, call: Callable[[Any], object]) -> None:
    @tasks.task
    def work(order: int) -> None:
        """Nothing."""

    with pytest.raises(InvalidPublication, match="task work: "):
        call(work)
    assert lapse.depth("emails") == 0


def _odd(_id: int, model_config: str, copy: bool, model_dump: int = 4, *, model_fields_set: int = 5) -> None:
    """Parameters with names that pydantic's models take for themselves, or do not allow."""


@pytest.mark.filterwarnings("error")
def test_parameters_may_have_any_names(lapse: Lapse, tasks: TaskQueue) -> None:
    task = tasks.task(_odd)
    task.submit(1, model_config="m", copy=True)
    value = b'{"_id":1,"model_config":"m","copy":true,"model_dump":4,"model_fields_set":5}'
    assert lapse.records("emails")[0].value == b'{"task":"_odd","arguments":%b}' % value
    with lapse.subscriber("emails") as subscriber:
        call = tasks.parse_call(subscriber.receive(timeout=5))  # type: ignore[arg-type]
    assert call is not None
    assert call.keywords == {"_id": 1, "model_config": "m", "copy": True, "model_dump": 4, "model_fields_set": 5}
    with pytest.raises(InvalidPublication, match="task _odd: the payload is no _odd: _id: Input should be a valid"):
        task.submit("x", "m", copy=True)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "tasks"])
def test_a_close_ends_all_runs(lapse: Lapse, tasks: TaskQueue, asynchronous: bool) -> None:
    done: list[int] = []
    at_work = threading.Barrier(2)

    async def in_tasks() -> None:
        async with aio.TaskQueue("emails", connection=lapse.connection) as queue:
            queue.task(work)
            runs = [asyncio.create_task(queue.run()) for _ in range(2)]
            for number in range(2):
                await queue._tasks["work"].submit(number)
            await asyncio.to_thread(lapse.until, lambda: len(done) == 2)
            await queue.close()
            async with asyncio.timeout(20):
                await asyncio.gather(*runs)

    def work(number: int) -> None:
        at_work.wait(20)
        done.append(number)

    if asynchronous:
        asyncio.run(in_tasks())
    else:
        tasks.task(work)
        runs = [threading.Thread(target=tasks.run, daemon=True) for _ in range(2)]
        for run in runs:
            run.start()
        for number in range(2):
            tasks._tasks["work"].submit(number)
        lapse.until(lambda: len(done) == 2)
        tasks.close()
        for run in runs:
            run.join(20)
        assert not any(run.is_alive() for run in runs)
    assert lapse.depth("emails") == 0


def test_what_is_no_task_is_refused(tasks: TaskQueue) -> None:
    with pytest.raises(TypeError, match=r"parameter \*args: each has to have a name"):
        tasks.task(lambda *args: None, name="a")
    with pytest.raises(TypeError, match="a parameter is of no type of payloads"):
        tasks.task(_of_a_lock)
    with pytest.raises(TypeError, match="say by which name messages call it"):
        tasks.task(functools.partial(_odd, 1))
    with pytest.raises(TypeError, match="the type of a parameter cannot be found: name 'Nowhere' is not defined"):
        tasks.task(_of_nowhere)
    tasks.task(lambda: None, name="b")
    with pytest.raises(LapseError, match="has a task b already"):
        tasks.task(lambda: None, name="b")


def _of_a_lock(lock: threading.Thread) -> None:
    """A parameter that no message can bring."""


def _of_nowhere(order: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """A parameter whose type nobody knows."""


def test_asyncio_has_the_same(lapse: Lapse, tasks: TaskQueue) -> None:
    done: list[object] = []

    async def run() -> None:
        async with aio.TaskQueue("emails", connection=lapse.connection) as queue:

            @queue.task
            async def slow(number: int) -> None:
                await asyncio.sleep(0)
                done.append(number)
                if number == 1 and done.count(1) == 1:
                    raise Retry(0)

            @queue.task
            def quick(text: str) -> None:
                done.append((text, threading.current_thread() is threading.main_thread()))

            assert (await slow.submit(1)).topic == "emails"
            await quick.submit("a")
            await asyncio.to_thread(queue.publisher.publish, "emails", b"no JSON")
            working = asyncio.create_task(queue.run(2))
            await asyncio.to_thread(lapse.until, lambda: len(done) == 3 and len(lapse.dead_letters("emails")) == 1)
            await queue.close()
            async with asyncio.timeout(10):
                await working

    asyncio.run(run())
    assert sorted(map(str, done)) == ["('a', False)", "1", "1"]

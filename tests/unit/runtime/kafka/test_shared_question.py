"""Questions that are asked together."""

import asyncio
import gc

import pytest

from lapse.runtime.kafka.shared_question import SharedQuestion

pytestmark = pytest.mark.feature("Q16")


def test_what_comes_while_one_is_under_way_is_asked_at_once_as_the_next() -> None:
    asked: list[list[int]] = []

    async def ask(keys: list[int]) -> dict[int, int]:
        asked.append(sorted(keys))
        await asyncio.sleep(0.01)
        return {key: key * key for key in keys if key != 13}

    async def main() -> None:
        together = SharedQuestion(ask)
        assert await together.of([]) == {}
        first = asyncio.gather(*(together.of([key]) for key in range(5)))
        await asyncio.sleep(0.005)
        later = asyncio.gather(together.of([7, 13]), together.of([7]))
        assert await first == [{key: key * key} for key in range(5)]
        assert await later == [{7: 49}, {7: 49}]
        assert asked == [[0, 1, 2, 3, 4], [7, 13]]

    asyncio.run(main())


def test_a_failed_question_fails_for_all_who_took_part_and_for_nobody_else() -> None:
    async def ask(keys: list[int]) -> dict[int, int]:
        if 0 in keys:
            raise TimeoutError
        return dict.fromkeys(keys, 1)

    async def main() -> None:
        together = SharedQuestion(ask)
        failed = await asyncio.gather(together.of([0]), together.of([1]), return_exceptions=True)
        assert [type(one) for one in failed] == [TimeoutError, TimeoutError]
        assert await together.of([1]) == {1: 1}

    asyncio.run(main())


def test_a_question_that_fails_once_nobody_waits_for_it_is_not_logged() -> None:
    answers: list[object] = []
    answer = asyncio.Event()

    async def ask(_: list[int]) -> dict[int, int]:
        await answer.wait()
        raise TimeoutError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: answers.append(context))
        together = SharedQuestion(ask)
        asking = asyncio.create_task(together.of([0]))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        answer.set()
        for _ in range(3):
            await asyncio.sleep(0)
        del together
        gc.collect()

    asyncio.run(main())
    assert not answers

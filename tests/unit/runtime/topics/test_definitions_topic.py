"""The definitions topic: work that somebody else's change undoes is done again (C64)."""

from __future__ import annotations

import asyncio

import pytest

from lapse.config import Config
from lapse.runtime.topics import definitions
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange


@pytest.mark.feature("C64", "Q23")
def test_who_is_outdone_tries_again_and_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "_AGAIN_S", 0.0)
    topic = DefinitionsTopic(Config())

    def outdone(times: int) -> tuple[object, int]:
        tried = 0

        async def work() -> str:
            nonlocal tried
            tried += 1
            if tried <= times:
                raise OutdatedChange("somebody was first")
            return "done"

        try:
            return asyncio.run(topic.retry_if_outdated(work)), tried
        except OutdatedChange as error:
            return str(error), tried

    assert outdone(0) == ("done", 1)
    assert outdone(3) == ("done", 4)
    assert outdone(99) == ("somebody was first", 10)

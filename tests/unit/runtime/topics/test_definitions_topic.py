"""The definitions topic: work that somebody else's change undoes is done again (C64)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lapse.config import Config
from lapse.runtime.topics import definitions
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange
from lapse.runtime.topics.topology import TopologyError


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


class _Unheard:
    """A producer whose records no broker takes, and a reader that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        assert name != "read", "what is there counts only once the open change is aborted"
        return lambda *_, **__: None


@pytest.mark.feature("Q23")
def test_a_change_that_could_not_be_aborted_is_not_committed_together_with_the_next_one() -> None:
    unheard: Any = _Unheard()
    with pytest.raises(TopologyError, match="could not be aborted"):
        DefinitionsTopic(Config())._abort_hanging(unheard, unheard, 7)

"""The processes of one entity's expiry rule: the present one, and those that its settings no longer name (L15, Q23)."""

from __future__ import annotations

from lapse.config import QueueConfig, SowConfig
from lapse.runtime.letters.rule_process import RuleProcess


class RuleProcesses:
    """Keeps a replaced process until all shards are taken over anew, because they may still wait for its calls.

    Attributes:
        current: calls the function that the settings name; None without one.
    """

    def __init__(self, entity: str, config: QueueConfig | SowConfig) -> None:
        self._entity = entity
        self._named = config.on_expire, config.on_expire_timeout
        self._replaced: list[RuleProcess] = []
        self.current = self._process()

    def use(self, config: QueueConfig | SowConfig) -> None:
        """Call the function that these settings name from now on. Its figures go on."""
        named = config.on_expire, config.on_expire_timeout
        if named == self._named:
            return
        self._named = named
        former, self.current = self.current, self._process()
        if former is not None:
            self._replaced.append(former)
            if self.current is not None:
                self.current.figures = former.figures

    def _process(self) -> RuleProcess | None:
        function, timeout_ms = self._named
        return None if function is None else RuleProcess(self._entity, function, timeout_ms)

    async def stop_replaced(self) -> None:
        """Stop the processes that no shard uses any more."""
        replaced, self._replaced = self._replaced, []
        for process in replaced:
            await process.stop()

    async def stop(self) -> None:
        """Stop all processes, once all shards are given up."""
        await self.stop_replaced()
        if self.current is not None:
            await self.current.stop()

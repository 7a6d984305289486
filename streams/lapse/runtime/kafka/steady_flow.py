"""Flow control that drops waiting records only if the flow had stopped."""

from __future__ import annotations

from mode.utils.queues import FlowControlEvent


class SteadyFlow(FlowControlEvent):
    """Mode's; Faust has the flow go on at the end of each rebalance, and what was on its way then would be lost."""

    def resume(self) -> None:
        """Go on, without what waited before the flow stopped; nothing where it had not stopped."""
        if not self.is_active():
            super().resume()

"""The configuration of a queue's retries, such as `retry = { delay = "1s", factor = 2 }` (Q24)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lapse.config.duration import PeriodMs
from lapse.config.fault import first_repeated, setting_error
from lapse.core.duration import in_words
from lapse.core.queue.delivery.retry_cause import LONGEST_MS, Cause

if TYPE_CHECKING:
    from lapse.core.queue.delivery.retry import RetryRule


class RetryConfig(BaseModel):
    """The settings for the wait of a returned message before its next delivery.

    Attributes:
        delay: wait before the second delivery, ms.
        factor: each further wait is longer by this factor.
        max_delay: the longest wait, ms; a day if left out.
        jitter: the fraction, 0 to 1, by which a wait may be shorter or longer.
        on: the causes of return after which messages wait: cancels, ended leases, lost consumers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    delay: PeriodMs
    factor: float = Field(default=1.0, ge=1, le=1_000, strict=True, allow_inf_nan=False)
    max_delay: PeriodMs = LONGEST_MS
    jitter: float = Field(default=0.0, ge=0, le=1, strict=True, allow_inf_nan=False)
    on: tuple[Cause, ...] = tuple(Cause)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.delay > self.max_delay:
            raise setting_error(
                "max_delay", f"{in_words(self.max_delay)} is shorter than delay, {in_words(self.delay)}"
            )
        if not self.on:
            raise setting_error("on", "names nothing after which messages wait; leave retry out where none should")
        if (twice := first_repeated(self.on)) is not None:
            raise setting_error("on", f"{twice} is named twice")
        return self

    def rule(self) -> RetryRule:
        """Return the rule in the core's form."""
        from lapse.core.queue.delivery.retry import RetryRule  # a late import: few commands need numpy

        return RetryRule(self.delay, self.factor, self.max_delay, self.jitter, frozenset(self.on))

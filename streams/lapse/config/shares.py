"""The configuration of shares: `rate`, `group_rate`, `group_limit` and `group_weight` (Q25, C71, C72)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from lapse.config.fault import setting_error
from lapse.core.duration import period_ms
from lapse.core.queue.rates.rate import Rate

GroupLimit = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
"""The greatest number of messages of a group that are leased at once."""

GroupWeight = Annotated[int, Field(ge=1, le=1_000, strict=True)]
"""The weight of a group: how many messages it gets for each message of a group with weight 1."""

_RATE: Final = re.compile(r"([0-9]{1,15})\s*/\s*(.*)\Z")
_KEYS: Final = {"messages", "per"}
_MOST: Final = 1_000_000_000


def parse_rate(value: object) -> Rate:
    """Parse a rate, such as `"100/1s"`, `"100/s"` or `{ messages = 100, per = "1s" }`.

    Raises:
        ValueError: the value is not a rate, or 0.
    """
    count: object
    if isinstance(value, Rate):
        return value
    if isinstance(value, dict) and value.keys() == _KEYS:
        count, per = value["messages"], value["per"]
    elif isinstance(value, str) and (match := _RATE.match(value.strip())):
        count, per = int(match[1]), match[2] if match[2][:1].isdigit() else f"1{match[2]}"
    else:
        raise ValueError(f'expected a rate such as "100/1s" or {{ messages = 100, per = "1s" }}, not {value!r}')
    if isinstance(count, bool) or not isinstance(count, int):
        raise ValueError(f"messages: expected a whole number, not {count!r}")
    if not 1 <= count <= _MOST:
        raise ValueError(f"{value!r}: from 1 to {_MOST} messages; to hold all deliveries back, pause the queue (C71)")
    return Rate(count, period_ms(per))


RateSetting = Annotated[Rate, BeforeValidator(parse_rate)]
"""A field that is written as a rate."""


def check_shares(stated: Mapping[str, bool], *, grouped: bool, bounded: bool, orders: int) -> None:
    """Check that a queue's settings for shares are compatible with its other settings.

    Args:
        stated: by name of the setting, whether the queue has it.
        grouped: whether the queue has `group_by`.
        bounded: whether the queue has `target_queue_depth`.
        orders: number of independent orders: one in all, or one for each partition.

    Raises:
        PydanticCustomError: a setting is not possible; the message says which and why.
    """
    for key in [key for key, is_stated in stated.items() if is_stated]:
        if key != "rate" and not grouped:
            raise setting_error(key, "needs group_by: the expression that says what a message's group is (Q25)")
        if bounded:
            above = "above 1 " if key == "group_limit" else ""
            raise setting_error(key, f"{above}is not possible together with target_queue_depth (C72)")
    if stated["rate"] and orders > 1:
        raise setting_error("rate", partition_rate_fault(orders))


def partition_rate_fault(count: int) -> str:
    """Return what is wrong with a rate of a queue over `count` partitions."""
    return f'a rate over {count} partitions requires ordering = "total"; group_rate counts in each partition (C72)'

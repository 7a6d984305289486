"""What `lapse.toml` says of shares between the groups of a queue: `group_limit`, `group_weight` (Q25, C72)."""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from lapse.config.fault import misfit

GroupLimit = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
"""Most messages of a group that are leased at once."""

GroupWeight = Annotated[int, Field(ge=1, le=1_000, strict=True)]
"""How many messages a group gets in its turn, beside a group of weight 1."""


class Shared(Protocol):
    """The settings of a queue that decide whether its groups can have shares."""

    group_by: str | None
    group_limit: int
    group_weight: dict[str, int]
    target_queue_depth: int | None


def fit_together(queue: Shared) -> None:
    """Look whether a queue's settings can hold together.

    Raises:
        PydanticCustomError: they cannot; it says which, and why.
    """
    said = {"group_limit": queue.group_limit > 1, "group_weight": bool(queue.group_weight)}
    for key in [key for key, is_said in said.items() if is_said]:
        if queue.group_by is None:
            raise misfit(key, "needs group_by: the expression that says what a message's group is (Q25)")
        if queue.target_queue_depth is not None:
            above = "above 1 " if key == "group_limit" else ""
            raise misfit(key, f"{above}is not possible together with target_queue_depth (C72)")

"""Rewind point: from where on a rewind brings messages back, as an option (Q22)."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from lapse.cli.instant import INSTANT, When
from lapse_client.queue.rewind import point


class RewindPoint(click.ParamType):
    """An option that says where a rewind begins."""

    name = "point"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | When:
        """Parse the value. `beginning` and bookmarks are returned unchanged."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        with contextlib.suppress(ValueError):
            return point(value)
        try:
            return INSTANT.convert(value, param, ctx)
        except click.BadParameter:
            self.fail(
                f'{value!r}: expected "beginning", a bookmark such as "orders:0:1200", "2026-01-31T12:00:00", ms since '
                'the epoch, or "2h" for two hours ago',
                param,
                ctx,
            )

"""Prints the results of settlements, and what a message is called now if a rewind has superseded its name (C61)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import click
import orjson

from lapse.core.generation import generation_of, offset_of
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse_client.queue.queue import Queue
from lapse_client.subscriber.settlement import STALE, SettlementResult

_MOST: Final = 20
"""The most messages that are named."""


def print_results(client: Queue, results: Sequence[SettlementResult], as_json: bool) -> None:
    """Print the results of a settlement.

    Raises:
        click.exceptions.Exit: not everything was settled.
    """
    for result in results:
        if as_json:
            click.echo(orjson.dumps({"bookmarks": str(result.messages), "result": result.result}))
        else:
            click.echo(f"{result.messages} {result.result}")
    if not as_json and (names := later_names(client, [one.messages for one in results if one.result == STALE])):
        click.echo(f"A rewind has superseded what is stale: now it is {', '.join(names)}", err=True)
    if any(not result.settled for result in results):
        raise click.exceptions.Exit(1)


def later_names(client: Queue, superseded: Iterable[BookmarkRange]) -> list[str]:
    """Return the bookmarks of messages in the queue that a rewind brought back, by older names; at most twenty.

    Args:
        client: the queue.
        superseded: bookmarks with the result `stale`. A message may have it for another reason.
    """
    found: list[str] = []
    for one in superseded:
        first, last = offset_of(one.first), offset_of(one.last)
        topic = one.topic.replace("'", "''")
        named = f"TOPIC() = '{topic}' AND PARTITION() = {one.partition} AND OFFSET() >= {first} AND OFFSET() <= {last}"
        bookmarks = (message.bookmark for message in client.peek(filter=named, top_n=_MOST))
        found += [text for text in bookmarks if Bookmark.parse(text).generation > generation_of(one.first)]
        if len(found) >= _MOST:
            break
    return found[:_MOST]

"""`lapse publish`: publishes records with lifetimes, from an argument or from standard input."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

import click
import orjson

from lapse.cli import cluster
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import InvalidPublication, LapseError
from lapse_client.publisher.publisher import Publisher

_REPORTS_WITHIN_S: Final = 30.0
"""How long Kafka may take to report a record, in seconds."""

_NAMED: Final = 5
"""The most refused records that the error names."""


@click.command()
@click.argument("to")
@click.argument("value", required=False)
@click.option("-k", "--key", help="Record key; decides the partition.")
@click.option("--ttl-ms", type=int, help="Lifetime from arrival, in ms; 0 = never expires.")
@click.option("--expires-at-ms", type=int, help="Deadline, in ms since the epoch.")
@click.option("--enqueue-at-ms", type=int, help="The message is invisible before this instant, in ms since the epoch.")
@click.option("--message-id", help="Id of the message; the entity drops repeats within its window.")
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="A further header; may be repeated."
)
@click.option("--delta", is_flag=True, help="Merge into the stored record of a SOW topic.")
@click.option("--delete", is_flag=True, help="Delete the key's record from a SOW topic: publish without a value.")
@cluster.options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per record.")
def publish(
    to: str,
    value: str | None,
    key: str | None,
    ttl_ms: int | None,
    expires_at_ms: int | None,
    enqueue_at_ms: int | None,
    message_id: str | None,
    headers: tuple[str, ...],
    delta: bool,
    delete: bool,
    bootstrap_servers: str | None,
    as_json: bool,
) -> None:
    """Publish to a topic, or to a queue's default target.

    TO is a topic or a queue. Without VALUE each line of standard input is a record. Prints the bookmarks.
    """
    if delete and (value is not None or key is None):
        raise click.UsageError("--delete takes --key and no VALUE")
    further = [_header(text) for text in headers]
    reports = _Reports(as_json)
    live = value is None and not delete and click.get_binary_stream("stdin").isatty()
    try:
        with Publisher(cluster.connection(bootstrap_servers, insists=False)) as publisher:
            if live:
                publisher.topic_of(to)  # a wrong name is reported before anybody types
                click.echo("Each line is a message. Ctrl-D ends.", err=True)
            for payload in _values(value, delete):
                reports.add(
                    publisher.submit(
                        to,
                        payload,
                        key,
                        ttl_ms=ttl_ms,
                        expires_at_ms=expires_at_ms,
                        enqueue_at_ms=enqueue_at_ms,
                        message_id=message_id,
                        headers=further,
                        delta=delta,
                    )
                )
                reports.show(wait=live)
            publisher.flush()
            reports.show(wait=True)
    except InvalidPublication as error:
        raise click.UsageError(str(error)) from error
    except LapseError as error:
        reports.show(wait=False)
        raise click.ClickException(str(error)) from error
    if reports.refused:
        raise click.ClickException(reports.refusal_text())


class _Reports:
    """The reports of records, which are shown in the order of the records as they come.

    Args:
        as_json: whether each is an object of JSON.

    Attributes:
        refused: numbers of refused records, from 1 on, with the errors.
    """

    def __init__(self, as_json: bool) -> None:
        self.refused: list[tuple[int, str]] = []
        self._as_json = as_json
        self._waiting: deque[Future[Bookmark]] = deque()
        self._shown = 0

    def add(self, report: Future[Bookmark]) -> None:
        """Add the report of the next record."""
        self._waiting.append(report)

    def show(self, *, wait: bool) -> None:
        """Show the next reports, as far as they have come; with `wait` all of them."""
        while self._waiting and (wait or self._waiting[0].done()):
            report = self._waiting.popleft()
            self._shown += 1
            try:
                bookmark = str(report.result(_REPORTS_WITHIN_S))
            except (LapseError, TimeoutError) as error:
                self.refused.append((self._shown, str(error) or "no report from Kafka"))
                continue
            click.echo(orjson.dumps({"bookmark": bookmark}) if self._as_json else bookmark)

    def refusal_text(self) -> str:
        """Return which records were refused, and why."""
        if self._shown == 1:
            return self.refused[0][1]
        named = "; ".join(f"line {number}: {why}" for number, why in self.refused[:_NAMED])
        more = "; …" if len(self.refused) > _NAMED else ""
        return f"{len(self.refused):,} of {self._shown:,} records were not published: {named}{more}"


def _values(value: str | None, delete: bool) -> Iterator[bytes | None]:
    if delete:
        yield None
    elif value is not None:
        yield os.fsencode(value)  # bytes that are not UTF-8 are sent unchanged
    else:
        for line in click.get_binary_stream("stdin"):
            yield line.rstrip(b"\r\n")


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint="--header")
    return name, value

"""`lapse publish`: publishes records with lifetimes, from an argument or from standard input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future

import click
import orjson

from lapse.cli import cluster
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import InvalidPublication, LapseError
from lapse_client.publisher.publisher import Publisher


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
    try:
        with Publisher(cluster.connection(bootstrap_servers, insists=False)) as publisher:
            sent: list[Future[Bookmark]] = [
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
                for payload in _values(value, delete)
            ]
            publisher.flush()
        for future in sent:
            bookmark = str(future.result(0))
            click.echo(orjson.dumps({"bookmark": bookmark}) if as_json else bookmark)
    except InvalidPublication as error:
        raise click.UsageError(str(error)) from error
    except (LapseError, TimeoutError) as error:
        raise click.ClickException(str(error)) from error


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

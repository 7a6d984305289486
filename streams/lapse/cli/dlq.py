"""`lapse dlq`: shows dead letters, sends them back, and deletes old ones (D2, D5)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import click
import orjson
from rich.table import Column, Table
from rich.text import Text

from lapse.cli import cluster, letter_topics
from lapse.cli.instant import INSTANT, When, at_ms
from lapse.cli.lazy_group import LazyGroup
from lapse.cli.redrive_summary import RedriveSummary
from lapse.core.duration import duration_ms
from lapse.core.expression import ExpressionError
from lapse.core.reason import Reason
from lapse.option_type import Number, check_span, not_empty
from lapse.protocol import topic
from lapse.protocol.redrive import MAX_REDRIVES
from lapse.tables import print_table
from lapse_client.error import LapseError
from lapse_client.kafka import time_check
from lapse_client.kafka.connection import Connection
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.letters.letter_purge import LetterPurge
from lapse_client.letters.letter_queues import LetterQueues
from lapse_client.letters.redrive import Choice, Known, Line, Target, check_target, plan, send
from lapse_client.letters.unfinished_redrive import refusal
from lapse_client.reading.count_text import count_text
from lapse_client.reading.instant import shown

Command = Callable[..., Any]

_VALUE_SHOWN: Final = 80
_FAULT_SHOWN: Final = 200
"""The most characters of a value, and of an error, in a table. --json has all."""

_INSTANT: Final = "_at_ms"
"""How the name of an instant ends."""

_SERVERS = cluster.options
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


def _choosing(command: Command) -> Command:
    """Add the options that choose letters."""
    for option in (
        click.option(
            "-f",
            "--filter",
            "expression",
            default="",
            callback=not_empty,
            help="Only letters whose message matches this expression.",
        ),
        click.option("-e", "--entity", default="", callback=not_empty, help="Only letters of this queue or SOW topic."),
        click.option(
            "-r",
            "--reason",
            multiple=True,
            type=click.Choice([one.value for one in Reason]),
            help="Only letters with this reason; may be repeated.",
        ),
        click.option(
            "--since", type=INSTANT, help='Only messages that died then or later; "2h": in the last two hours.'
        ),
        click.option("--until", type=INSTANT, help="Only messages that died before then."),
    ):
        command = option(command)
    return command


@click.group(cls=LazyGroup, lazy={})
def dlq() -> None:
    """Show dead letters, send them back, or delete them."""


@dlq.command()
@click.argument("name", required=False)
@_SERVERS
@_JSON
def ls(name: str | None, bootstrap_servers: str | None, as_json: bool) -> None:
    """List dead-letter topics; of one, count its letters by entity and reasons, with the first and last death."""
    with _translate_errors():
        connection = cluster.connection(bootstrap_servers)
        if name is None:
            topics = connection.partitions()
            rows = [
                {"topic": found, "partitions": topics[found]}
                for found in sorted(letter_topics.existing(connection, topics))
            ]
            if not rows and (blind := connection.blind("dead-letter topics", topic.DEAD_LETTER_PREFIX)):
                raise blind
        else:
            rows = _counted(letter_topics.letters_of(name, connection))
    _print(rows, as_json, name or "dead-letter topics", "no letters" if name else "none")


@dlq.command()
@click.argument("name")
@click.option(
    "-n", "--count", type=click.IntRange(1), default=20, show_default=True, help="The greatest number of letters."
)
@_choosing
@_SERVERS
@_JSON
def show(name: str, count: int, bootstrap_servers: str | None, as_json: bool, **chosen: Any) -> None:
    """Print letters, with their messages and why they died."""
    with _translate_errors():
        connection = cluster.connection(bootstrap_servers)
        reader = letter_topics.letters_of(name, connection)
        letters = list(islice(_choice(_broker_clock(connection, name), **chosen).of(reader), count))
    if as_json:
        for letter in letters:
            click.echo(orjson.dumps(_as_dict(letter)))
        return
    table = Table(
        "died (UTC)", Column("origin", overflow="fold"), "reasons", "fault", "deliveries", "redriven", "value"
    )
    for letter in letters:
        table.add_row(
            shown(letter.died_ms),
            str(letter.origin or ""),
            ", ".join(letter.reasons),
            Text(_cut(letter.message, _FAULT_SHOWN)),
            str(letter.delivery_count),
            str(letter.redriven_count),
            Text(_cut((letter.value or b"").decode("utf-8", "replace"), _VALUE_SHOWN)),
        )
    print_table(table)


@dlq.command()
@click.argument("name")
@click.option(
    "--to",
    "elsewhere",
    default="",
    callback=not_empty,
    help="The topic to send to, instead of each letter's origin.",
)
@click.option(
    "--lifetime",
    default="default",
    show_default=True,
    metavar="default|original|new:30s",
    help="The queue's default, the old deadline, or a new lifetime; new:0s = it never expires.",
)
@click.option(
    "--max-redrives",
    type=click.IntRange(1),
    default=MAX_REDRIVES,
    show_default=True,
    help="Leave letters that were redriven this often.",
)
@click.option("--again", is_flag=True, help="Include letters that were sent before.")
@click.option("--overwrite", is_flag=True, help="Send a letter even if its SOW topic has a newer record of the key.")
@click.option(
    "--end-unfinished",
    is_flag=True,
    help="Go on although lapse spark redrive was killed; what it has sent without a note is sent twice.",
)
@click.option("--limit", type=click.IntRange(1), help="The greatest number of letters.")
@click.option("--rate", type=Number(0, min_open=True), help="The greatest number of letters per second.")
@click.option(
    "--audit", type=click.Path(dir_okay=False, path_type=Path), help="Append a line of JSON per letter to this file."
)
@click.option("--yes", is_flag=True, help="Send the letters. Without it the command only shows them.")
@_choosing
@_SERVERS
@_JSON
def redrive(
    name: str,
    elsewhere: str,
    lifetime: str,
    max_redrives: int,
    again: bool,
    overwrite: bool,
    end_unfinished: bool,
    limit: int | None,
    rate: float | None,
    audit: Path | None,
    yes: bool,
    bootstrap_servers: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Send letters back to where they came from; a dry run unless --yes."""
    with _translate_errors():
        connection = cluster.connection(bootstrap_servers)
        target = _target(elsewhere, lifetime)
        now = _broker_clock(connection, name)
        choice = replace(_choice(now, **chosen), max_redrives=max_redrives, again=again, overwrite=overwrite)
        letters = letter_topics.letters_of(name, connection)
        check_target(target, letters.topic, connection, letter_topics.configured(), letters.definitions)
        known = Known.of(connection, letters.definitions)
        lines = plan(letters, choice, target, now(), known)
        summary = RedriveSummary(lifetime)
        lines = summary.counting(lines if limit is None else _at_most(lines, limit))
        count, why = 0, ""
        if not yes:
            deque(lines, maxlen=0)
            why = "" if end_unfinished else refusal(known.redriven.unfinished(letters.topic))
        else:
            with _audited(audit, now) as record:
                queues = LetterQueues(connection, letter_topics.readers())
                count = send(
                    lines,
                    connection,
                    letters=letters.topic,
                    redriven=known.redriven,
                    queues=queues,
                    rate=rate,
                    sent=record,
                    copies=letters.copies,
                    end_unfinished=end_unfinished,
                )
    _print(summary.rows(), as_json, f"redrive of {name}" if yes else f"redrive of {name}: a dry run")
    if not as_json:
        click.echo(f"{count_text(count, 'letter')} sent." if yes else _not_done("sent", 0 if why else summary.ready))
    if why:
        click.echo(f"Warning: With --yes this is refused: {why}.", err=True)


@dlq.command()
@click.argument("name")
@click.option("--until", type=INSTANT, required=True, help='Only letters written before then; "30d": thirty days ago.')
@click.option("--yes", is_flag=True, help="Delete the letters. Without it the command only shows them.")
@_SERVERS
@_JSON
def purge(name: str, until: When, yes: bool, bootstrap_servers: str | None, as_json: bool) -> None:
    """Delete letters that were written before an instant; a dry run unless --yes."""
    with _translate_errors():
        connection = cluster.connection(bootstrap_servers)
        letters = LetterPurge(name, connection)
        spans = letters.plan(at_ms(until, _broker_clock(connection, name)))
        if yes:
            letters.carry_out(spans)
    rows = [
        {"topic": letters.topic, "partition": span.partition, "from": span.first, "to": span.stop - 1} for span in spans
    ]
    _print(rows, as_json, f"purge of {letters.topic}" if yes else f"purge of {letters.topic}: a dry run")
    if not as_json:
        count = sum(span.stop - span.first for span in spans)
        click.echo(f"{count_text(count, 'letter')} deleted." if yes else _not_done("deleted", count))


def _not_done(done: str, count: int) -> str:
    """Return the last line of a dry run."""
    return f"Nothing was {done}. With --yes, {count_text(count, 'letter')} {'is' if count == 1 else 'are'} {done}."


def _target(elsewhere: str, lifetime: str) -> Target:
    kind: Literal["default", "original", "new"]
    ttl_ms = 0
    if lifetime == "default":
        kind = "default"
    elif lifetime == "original":
        kind = "original"
    elif lifetime.startswith("new:"):
        kind = "new"
        try:
            ttl_ms = duration_ms(lifetime.removeprefix("new:"))
        except ValueError as error:
            raise click.UsageError(f"--lifetime {lifetime}: {error}") from error
    else:
        raise click.UsageError(f"--lifetime {lifetime}: expected default, original, or new:30s")
    return Target(topic=elsewhere, lifetime=kind, ttl_ms=ttl_ms)


def _broker_clock(connection: Connection, name: str) -> Callable[[], int]:
    """Return a function for the broker's time, ms since the epoch. Its first call measures the clock."""
    measured = False

    def now_ms() -> int:
        nonlocal measured
        if measured:
            return int(connection.clock.now_ms())
        measured = True
        return time_check.now_ms(connection, name, lambda why: click.echo(f"Warning: {why}", err=True))

    return now_ms


def _choice(
    now: Callable[[], int],
    expression: str,
    entity: str,
    reason: tuple[str, ...],
    since: When | None,
    until: When | None,
) -> Choice:
    since_ms = None if since is None else at_ms(since, now)
    until_ms = None if until is None else at_ms(until, now)
    check_span(since_ms, until_ms)
    return Choice(
        entity=entity,
        reasons=frozenset(reason),
        since_ms=since_ms,
        until_ms=until_ms,
        filter=expression,
        payloads=cluster.payloads() if expression else {},
    )


def _at_most(lines: Iterable[Line], limit: int) -> Iterator[Line]:
    """Yield lines until `limit` of them are not refused."""
    for line in lines:
        yield line
        limit -= not line.refused
        if not limit:
            return


@contextlib.contextmanager
def _audited(path: Path | None, now: Callable[[], int]) -> Iterator[Callable[[Line, str], None]]:
    """Yield a function that appends the result of each letter to a file."""
    if path is None:
        yield lambda line, error: None
        return
    try:
        out = path.open("ab", buffering=0)  # a process that is killed leaves a line for each letter that was sent
    except OSError as error:
        remedy = "Nothing was sent. Name a file that you may write, in a folder that exists"
        raise click.ClickException(f"--audit {path}: cannot be written: {error.strerror}. {remedy}") from error
    with out:

        def record(line: Line, error: str) -> None:
            try:
                out.write(orjson.dumps({"at_ms": now(), **line.as_dict(), "error": error}) + b"\n")
            except OSError as fault:
                raise LapseError(
                    f"--audit {path}: cannot be written any more: {fault.strerror}. Run it again"
                ) from fault

        yield record


def _counted(letters: Iterable[DeadLetter]) -> list[dict[str, Any]]:
    counts: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for letter in letters:
        group = entity, reasons = letter.entity, tuple(letter.reasons)
        known = {"entity": entity, "reasons": list(reasons), "letters": 0}
        at_ms = letter.died_ms
        row = counts.setdefault(group, {**known, "first_at_ms": at_ms, "last_at_ms": at_ms})
        row["letters"] += 1
        row["first_at_ms"] = min(row["first_at_ms"], at_ms)
        row["last_at_ms"] = max(row["last_at_ms"], at_ms)
    return [counts[group] for group in sorted(counts)]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _as_dict(letter: DeadLetter) -> dict[str, Any]:
    return {
        **letter.facts(),
        "entity": letter.entity,
        "key": None if letter.key is None else letter.key.decode("utf-8", "replace"),
        "value": None if letter.value is None else letter.value.decode("utf-8", "replace"),
        "headers": [
            [name, None if value is None else value.decode("utf-8", "replace")] for name, value in letter.headers
        ],
    }


def _print(rows: list[dict[str, Any]], as_json: bool, title: str, nothing: str = "no letters") -> None:
    if as_json:
        for row in rows:
            click.echo(orjson.dumps(row))
        return
    if not rows:
        click.echo(f"{title}: {nothing}.")
        return
    table = Table(title=title)
    for name, value in rows[0].items():
        title = f"{name.removesuffix(_INSTANT)} died (UTC)" if name.endswith(_INSTANT) else name.replace("_", " ")
        table.add_column(title, justify="right" if isinstance(value, int) else "left")
    for row in rows:
        table.add_row(*(_shown(name, value) for name, value in row.items()))
    print_table(table)


def _shown(name: str, value: Any) -> str:
    if name.endswith(_INSTANT):
        return shown(value)
    return ", ".join(value) if isinstance(value, list) else str(value)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn the client's errors into the command's."""
    try:
        yield
    except (LapseError, ExpressionError, OSError) as error:
        raise click.ClickException(str(error)) from error

"""Alerts: findings in the monitor's counts, sent once to a topic and a webhook.

An alert has the same id in each run. Sent alerts are recorded beside the counts. If a run dies between the two, the
next one sends its alerts again, with the same ids.
"""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lapse_client.reading.count_text import count_text
from lapse_spark import anomaly, summary
from lapse_spark.collected import in_utc
from lapse_spark.connection import Connection
from lapse_spark.monitoring import monitor
from lapse_spark.stream.directory_lock import locked
from lapse_spark.stream.output import Output

MOST: Final = 100
"""The most alerts of one rule in one run, the most serious first."""

_TABLE: Final = "alerts"
_LOCK: Final = "_alerts_lock"
"""The file that keeps two runs apart. It is not the monitor's, which may run at the same time."""
_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A finding that needs attention.

    Attributes:
        id: id of the finding, the same in each run.
        rule: `unusual`, `poison`, `quarantine` or `gap`.
        entity: the queue or SOW topic; for `quarantine` and `gap` the dead-letter topic.
        text: a sentence that describes the finding.
        value: the figure of the finding.
    """

    id: str
    rule: str
    entity: str
    text: str
    value: float


def find(
    spark: SparkSession,
    path: str,
    *,
    since: datetime,
    at_least: int = anomaly.AT_LEAST,
    sigmas: float = anomaly.SIGMAS,
    poison: int = 3,
) -> list[Alert]:
    """Return the findings in the monitor's tables.

    Args:
        spark: the Spark session.
        path: directory of the monitor's output.
        since: the earliest instant of interest.
        at_least: the least letters in an unusual window.
        sigmas: the least score of an unusual window, in standard deviations.
        poison: the least letters of one key that make it suspicious.

    Raises:
        ValueError: the monitor has not run there.
    """
    output = Output(spark, path)
    output.check_made_by("monitor")
    counted = monitor.totals(spark, path)
    letters = output.read("letters", since.date())
    if counted is None and not output.has_run:
        raise ValueError(f"{path}: no output of the monitor; run it first: lapse spark monitor {path}")
    recent = F.lit(since)
    found: list[Alert] = []
    odd = [] if counted is None else _find_unusual(counted, recent, at_least, sigmas)
    for row in odd:
        start = in_utc(row["window_start"])
        expected = f"{row['expected']:.1f} were to be expected"
        text = f"{row['letters']} dead letters from {start:%Y-%m-%d %H:%M:%S} UTC, {expected}"
        found.append(_alert("unusual", row["entity"], f"{start:%Y-%m-%dT%H:%M}", text, row["letters"]))
    if letters is not None and "key" in letters.columns:
        dying = summary.poison(letters.where(F.col("died_at") >= recent), poison).limit(MOST)
        for row in dying.collect():
            again = f", {row['redriven']} times redriven" if row["redriven"] else ""
            keyed = row["key"] is not None
            whose = f"key {row['key']!r} has" if keyed else "a message without a key has"
            fault = f": {row['last_message']}" if row["last_message"] else ""  # other systems' letters may have none
            text = f"{whose} {count_text(row['letters'], 'dead letter')}{again}{fault}"
            found.append(_poison(row["entity"], row["key"] if keyed else row["letter"], keyed, text, row["letters"]))
    aside = output.read("quarantine", since.date())
    if aside is not None:
        for row in aside.groupBy("topic", "day").count().orderBy(F.desc("count")).limit(MOST).collect():
            text = f"{row['count']} records on {row['topic']} are no dead letters ({row['day']})"
            found.append(_alert("quarantine", row["topic"], str(row["day"]), text, row["count"]))
    read = output.read("partitions", since.date())
    if read is not None:
        gaps = read.where(F.col("missing_before") > 0).orderBy(F.desc("missing_before")).limit(MOST)
        for row in gaps.collect():
            place = f"{row['letter_partition']}:{row['first_offset']}"
            text = f"{row['missing_before']} offsets before {row['letter_topic']}:{place} were removed unread"
            found.append(_alert("gap", row["letter_topic"], place, text, row["missing_before"]))
    return found


def _find_unusual(counted: DataFrame, recent: Column, at_least: int, sigmas: float) -> list[Row]:
    windows = anomaly.unusual(counted, at_least=at_least, sigmas=sigmas).where(F.col("window_end") > recent)
    return windows.limit(MOST).collect()


def run(
    spark: SparkSession,
    connection: Connection,
    path: str,
    *,
    now: datetime | None = None,
    within: timedelta = timedelta(days=1),
    topic: str = "",
    webhook: str = "",
    at_least: int = anomaly.AT_LEAST,
    sigmas: float = anomaly.SIGMAS,
    poison: int = 3,
) -> list[Alert]:
    """Find alerts, and send those that were not sent before.

    Args:
        spark: the Spark session.
        connection: connection to the cluster of the topic.
        path: directory of the monitor's output, in which sent alerts are recorded.
        now: the present instant; None = this machine's time.
        within: age of the oldest findings of interest.
        topic: topic for alerts as JSON, with their ids as keys; empty = no topic.
        webhook: URL that gets one POST of `{"alerts": […]}`; empty = none. It may contain a secret, and is never shown.
        at_least: the least letters in an unusual window.
        sigmas: the least score of an unusual window, in standard deviations.
        poison: the least letters of one key that make it suspicious.

    Returns:
        The new alerts.

    Raises:
        ValueError: there is no output of the monitor, or the webhook is not a URL.
        OSError: the webhook did not accept the alerts. The next run sends them again.
        LapseError: another run reports the findings of this directory now.
    """
    now = now or datetime.now(UTC)
    if webhook:
        check_webhook(webhook)
    output = Output(spark, path)
    all_found = find(spark, path, since=now - within, at_least=at_least, sigmas=sigmas, poison=poison)
    with locked(output, _LOCK):
        raised = output.read(_TABLE)
        known = set() if raised is None else {row["id"] for row in raised.select("id").distinct().collect()}
        new = [one for one in all_found if one.id not in known]
        if not new:
            return []
        if topic:
            rows = _rows(spark, [(one.id, orjson.dumps(asdict(one)).decode()) for one in new])
            sent = rows.select(F.lit(topic).alias("topic"), "key", "value")
            sent.write.format("kafka").options(**connection.writing()).save()
        if webhook:
            _post(webhook, orjson.dumps({"alerts": [asdict(one) for one in new]}))
        output.write(_TABLE, _rows(spark, [(one.id, one.text) for one in new]), F.lit(now), int(now.timestamp() * 1000))
    return new


def _poison(entity: str, name: str, keyed: bool, text: str, letters: int) -> Alert:
    """Return the alert about a key, or about a letter without one, which no key's alert has the id of."""
    found = _alert("poison", entity, name, text, letters)
    return found if keyed else replace(found, id=f"poison-letter/{entity}/{name}")


def _alert(rule: str, entity: str, place: str, text: str, value: float) -> Alert:
    return Alert(id=f"{rule}/{entity}/{place}", rule=rule, entity=entity, text=text, value=float(value))


def _rows(spark: SparkSession, pairs: Sequence[tuple[str, str]]) -> DataFrame:
    """Return keys and values as a DataFrame, without Python on the executors. `id` is a copy of the key."""
    each = F.array(*(F.struct(F.lit(key).alias("key"), F.lit(value).alias("value")) for key, value in pairs))
    return spark.range(1).select(F.inline(each)).withColumn("id", F.col("key"))


def check_webhook(url: str) -> None:
    """Check the address of a webhook, which is not shown because it may contain a secret.

    Raises:
        ValueError: it is no URL.
    """
    try:
        address = urllib.parse.urlsplit(url)
        usable = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("the webhook is no address: expected https://host/path")


def _post(url: str, body: bytes) -> None:
    check_webhook(url)
    address = urllib.parse.urlsplit(url)
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310  # the scheme was checked
            return
    except urllib.error.HTTPError as error:
        raise OSError(f"the webhook at {address.hostname} answered {error.code}: the alerts are sent again") from None
    except OSError as error:
        raise OSError(f"the webhook at {address.hostname} cannot be reached ({error})") from None

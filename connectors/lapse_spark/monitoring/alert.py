"""Alerts: what the monitor has counted and somebody should look at, told once, on a topic and to a webhook.

An alert has an id, the same in each run. Those that were told are remembered beside the counts; a run that dies
between telling and remembering tells again, with the same id.
"""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse_spark import anomaly, summary
from lapse_spark.collected import in_utc
from lapse_spark.connection import Connection
from lapse_spark.monitoring import monitor
from lapse_spark.stream.output import Output

MOST: Final = 100
"""Most alerts of one rule in one run, the gravest first."""

_TABLE: Final = "alerts"
_TIMEOUT_S: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that somebody should look at.

    Attributes:
        id: the same whenever it is found.
        rule: `unusual`, `poison`, `quarantine` or `gap`.
        entity: the queue or SOW topic; of `quarantine` and `gap` the dead-letter topic.
        text: what is the matter, in a sentence.
        value: the figure that it is about.
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
    """What is the matter by the monitor's tables.

    Args:
        spark: the session.
        path: of the monitor's output.
        since: what is older is nobody's concern any more.
        at_least: letters in a window that may be unusual.
        sigmas: how far above the windows before it an unusual one is.
        poison: letters of one key that make it suspicious.

    Raises:
        ValueError: the monitor has not written anything there.
    """
    output, counted = Output(spark, path), monitor.totals(spark, path)
    letters = output.read("letters", since.date())
    if counted is None:
        raise ValueError(f"{path}: no output of the monitor; run it first: lapse spark monitor {path}")
    recent = F.lit(since)
    found: list[Alert] = []
    odd = anomaly.unusual(counted, at_least=at_least, sigmas=sigmas).where(F.col("window_end") > recent)
    for row in odd.limit(MOST).collect():
        start = in_utc(row["window_start"])
        expected = f"{row['expected']:.1f} were to be expected"
        text = f"{row['letters']} dead letters from {start:%Y-%m-%d %H:%M:%S} UTC, {expected}"
        found.append(_alert("unusual", row["entity"], f"{start:%Y-%m-%dT%H:%M}", text, row["letters"]))
    if letters is not None and "key" in letters.columns:
        dying = summary.poison(letters.where(F.col("died_at") >= recent), poison).limit(MOST)
        for row in dying.collect():
            again = f", {row['redriven']} times redriven" if row["redriven"] else ""
            whose = "messages without a key have" if row["key"] is None else f"key {row['key']!r} has"
            text = f"{whose} {row['letters']} dead letters{again}: {row['last_message']}"
            found.append(_alert("poison", row["entity"], str(row["key"]), text, row["letters"]))
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
    """Find what is the matter, and tell what was not told before.

    Args:
        spark: the session.
        connection: the cluster, for the topic.
        path: of the monitor's output; it remembers what was told.
        now: the instant; None = now.
        within: what is older is left alone.
        topic: gets each alert as JSON, with its id as the key; empty = no topic.
        webhook: gets `{"alerts": […]}` by POST, once for all; empty = none. It may hold a secret, and is never shown.
        at_least: letters in a window that may be unusual.
        sigmas: how far above the windows before it an unusual one is.
        poison: letters of one key that make it suspicious.

    Returns:
        The new ones.

    Raises:
        ValueError: no output of the monitor, or the webhook is no address.
        OSError: the webhook does not take them; the next run tells them again.
    """
    now = now or datetime.now(UTC)
    output = Output(spark, path)
    told = output.read(_TABLE)
    known = set() if told is None else {row["id"] for row in told.select("id").distinct().collect()}
    all_found = find(spark, path, since=now - within, at_least=at_least, sigmas=sigmas, poison=poison)
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


def _alert(rule: str, entity: str, place: str, text: str, value: float) -> Alert:
    return Alert(id=f"{rule}/{entity}/{place}", rule=rule, entity=entity, text=text, value=float(value))


def _rows(spark: SparkSession, pairs: Sequence[tuple[str, str]]) -> DataFrame:
    """Keys and values as a DataFrame, without Python on the executors; `id` is the key once more."""
    each = F.array(*(F.struct(F.lit(key).alias("key"), F.lit(value).alias("value")) for key, value in pairs))
    return spark.range(1).select(F.inline(each)).withColumn("id", F.col("key"))


def _post(url: str, body: bytes) -> None:
    address = urllib.parse.urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ValueError("the webhook is no address: expected https://host/path")
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310  # the scheme was looked at
            return
    except urllib.error.HTTPError as error:
        raise OSError(f"the webhook at {address.hostname} answered {error.code}: the alerts are told again") from None
    except OSError as error:
        raise OSError(f"the webhook at {address.hostname} cannot be reached ({error})") from None

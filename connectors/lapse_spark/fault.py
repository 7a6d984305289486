"""Spark's errors in one sentence with the next step, for commands (X7)."""

from __future__ import annotations

import re
from typing import Final

_FRAME: Final = re.compile(
    r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: |"
    r"^(?:org\.apache\.spark\.SparkException: )?Job aborted due to stage failure: .*?\): |"
    r"\s*SQLSTATE: \w+"
)
"""The parts of Spark's errors that tell a user nothing: ids, numbers of tasks, a code of SQL."""

_STEPS: Final = (
    (
        re.compile(
            r"_checkpoint/|MALFORMED_LOG_FILE|\.streaming\.(?:StreamMetadata|OffsetSeqLog|CommitLog|HDFSMetadata)"
        ),
        "The checkpoint cannot be read: put back a copy of the whole directory, or give a new one",
    ),
    (
        re.compile(r"AuthorizationException"),
        "Have the right granted (docs/operations.md, Rights), or connect as another user",
    ),
    (
        re.compile(
            r"UnknownTopicOrPartition|OffsetOutOfRange|data may have been (?:lost|missed)|"
            r"Cannot fetch (?:record|offset)|KAFKA_DATA_LOSS"
        ),
        "A topic was deleted, or Kafka has removed unread records: run the command again, an archive with --allow-gaps",
    ),
    (
        re.compile(r"before the position for partition \S+ could be determined"),
        "The topic was deleted, or no broker answered for it: run the command again",
    ),
    (
        re.compile(r"NotDirectoryException|AccessControlException|Permission denied|(?i:mkdirs?) (?:of|failed)"),
        "Give a directory that this user may write to",
    ),
    (re.compile(r"No space left on device"), "Make room on that disk, and run the command again"),
    (re.compile(r"OutOfMemoryError"), "Give Spark more memory: --conf spark.driver.memory=4g"),
)
"""The advice for an error, by its text and the texts of its causes."""


def sentence(message: str, whole: str = "") -> str:
    """Return an error as a user needs it: what happened, and what to do, without Spark's frame and Java's calls.

    Args:
        message: the text of the error.
        whole: text in which causes are looked for; empty = `message`.
    """
    text = _FRAME.sub("", " ".join(message.split("\n\tat ")[0].split()))
    text = _FRAME.sub("", text)  # a stream's error is often that of a job
    step = next((step for sign, step in _STEPS if sign.search(whole or message)), "")
    return f"{text.rstrip('. ')}. {step}" if step else text

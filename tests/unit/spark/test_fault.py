"""An error of Spark ends in one sentence, with the next step (X7)."""

import pytest

from lapse_spark.fault import sentence

STREAM = "[STREAM_FAILED] Query [id = a843d63c-6d13, runId = f0e020ef-ce82] terminated with exception: "
TASK = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: Lost task 0.0 in stage "
    "3.0 (TID 7) (localhost executor driver): "
)
CHECKPOINT = "The checkpoint cannot be read: put back a copy of the whole directory, or give a new one"
GONE = "A topic was deleted, or Kafka has removed unread records: run the command again, an archive with --allow-gaps"
RIGHTS = "Have the right granted (docs/operations.md, Rights), or connect as another user"
PLACE = "Give a directory that this user may write to"
MALFORMED = "Failed to read log file file:/out/_checkpoint/offsets/0. [MALFORMED_LOG_FILE] Log file was malformed"
TIMEOUT = "java.util.concurrent.TimeoutException: Cannot fetch record for offset 1 in 120000 milliseconds"

POSITION = "TimeoutException: Timeout of 60000ms expired before the position for partition dlq.a-0 could be determined"
AWAY = "The topic was deleted, or no broker answered for it: run the command again"


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("message", "whole", "says"),
    [
        (f"{STREAM}{MALFORMED}. SQLSTATE: KD002 SQLSTATE: XXKST", "", f"{MALFORMED}. {CHECKPOINT}"),
        (
            "JsonParseException: Unrecognized token 'X'",
            "An error\n\tat org.apache.spark.sql.execution.streaming.StreamMetadata$.read(StreamMetadata.scala:59)",
            f"JsonParseException: Unrecognized token 'X'. {CHECKPOINT}",
        ),
        (f"{STREAM}{TASK}{POSITION}", "", f"{POSITION}. {AWAY}"),
        (f"{STREAM}{TASK}{TIMEOUT}\n\tat org.apache.spark.Some.call(Some.scala:97)", "", f"{TIMEOUT}. {GONE}"),
        (
            "TopicAuthorizationException: not for you: [dlq.a]",
            "",
            f"TopicAuthorizationException: not for you: [dlq.a]. {RIGHTS}",
        ),
        ("IOException: mkdir of file:/a failed", "", "IOException: mkdir of file:/a failed. " + PLACE),
        ("nobody has foreseen this", "", "nobody has foreseen this"),
    ],
)
def test_it_says_what_happened_and_what_to_do_without_the_frame_of_spark(message: str, whole: str, says: str) -> None:
    assert sentence(message, whole) == says

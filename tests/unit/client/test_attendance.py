"""Who keeps silent because they are busy, and who because nobody is there (X7)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from lapse.protocol.answer import Answer
from lapse.protocol.command import Command
from lapse_client.error import AnswerTimeout, ConnectionFailed
from lapse_client.session import attendance
from lapse_client.session.attendance import Attendance
from lapse_client.session.shard import Shard

pytestmark = pytest.mark.feature("X7")

Send = Callable[[Shard, Command], "Future[Answer]"]
SHARDS = [Shard(0, "orders", 0), Shard(1, "orders", 1)]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attendance, "SILENCE_S", 0.01)
    monkeypatch.setattr(attendance, "_ANSWER_S", 0.01)


class Cluster:
    """Shards of which some are run by a worker."""

    def __init__(self, *attended: int) -> None:
        self.attended = attended
        self.asked: list[tuple[int, str, int | None]] = []

    def send(self, shard: Shard, command: Command) -> "Future[Answer]":
        future: Future[Answer] = Future()
        self.asked.append((shard.partition, command.command, command.top_n))
        if shard.partition in self.attended:
            future.set_result(Answer(id="", command=command.command, status="ok"))
        return future


def attended(
    send: Send, insists: bool, settles: bool, lacking: Sequence[str] = (), fault: ConnectionFailed | None = None
) -> Attendance:
    def reach(wait_s: float) -> None:
        if fault is not None:
            raise fault

    return Attendance(send, insists, settles, lambda _entity: lacking, reach)


@pytest.mark.parametrize(
    "command",
    [
        Command(command="purge"),
        Command(command="rewind"),
        Command(command="create_queue", entity="orders"),
        Command(command="sow", filter="/a = 1"),
    ],
    ids=lambda command: command.command,
)
def test_shards_are_asked_whether_they_are_there_before_they_are_busy_for_long(command: Command) -> None:
    cluster = Cluster(0, 1)
    at_work = attended(cluster.send, insists=False, settles=False)
    assert at_work.check_first([(shard, command) for shard in SHARDS], 30)
    assert cluster.asked == [(0, "depth", 0), (1, "depth", 0)]
    with pytest.raises(AnswerTimeout, match=f"no answer to {command.command} from shard 1 within 0.02 s"):
        attended(Cluster(0).send, insists=False, settles=False).check_first([(one, command) for one in SHARDS], 30)


def test_what_takes_no_time_is_asked_at_once() -> None:
    cluster = Cluster()
    plain = [(SHARDS[0], Command(command="pause"))]
    assert not attended(cluster.send, insists=False, settles=False).check_first(plain, 30)
    soon = [(SHARDS[0], Command(command="purge"))]
    assert not attended(cluster.send, insists=False, settles=False).check_first(soon, 5), "given up soon anyhow"
    assert not attended(cluster.send, insists=False, settles=True).check_first(soon, 30), "nothing can come"
    assert cluster.asked == []


def test_who_insists_waits_for_the_rest_of_the_time_and_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    left_s = attended(Cluster(1).send, insists=True, settles=False).check(SHARDS, "subscribe", 30)
    assert left_s == pytest.approx(29.98)
    assert "orders: no answer to subscribe from shard 0 within 0.02 s. Start a worker" in caplog.text
    assert "Waiting for 30 s in all" in caplog.text
    caplog.clear()
    attended(Cluster(0, 1).send, insists=False, settles=False).check(SHARDS, "subscribe", 30)
    assert not caplog.text, "they are there, and have much to do"


@pytest.mark.feature("X4")
def test_the_error_of_a_user_who_gets_no_answer_names_them() -> None:
    """Workers answer a user whom they do not know on no topic."""
    asked = Attendance(Cluster().send, False, False, lambda _entity: (), lambda _wait_s: None, "alice")
    with pytest.raises(AnswerTimeout, match="Workers do not answer a user who is in no lapse.toml: check that alice"):
        asked.check(SHARDS, "depth", 30)
    with pytest.raises(AnswerTimeout) as silent:
        attended(Cluster().send, insists=False, settles=False).check(SHARDS, "depth", 30)
    assert "lapse.toml" not in str(silent.value)


@pytest.mark.feature("C52")
@pytest.mark.parametrize("command", ["pause", "purge", "subscribe"])
def test_who_insists_is_informed_at_once_if_no_worker_can_come_as_a_topic_is_missing(command: str) -> None:
    lacks = attended(Cluster().send, insists=True, settles=False, lacking=["lapse.events.orders"])
    emitted = "No worker can serve it without its topic lapse.events.orders, which is missing. `lapse apply` creates it"
    with pytest.raises(AnswerTimeout, match=emitted):
        lacks.check(SHARDS, command, 30)


@pytest.mark.parametrize(("command", "comes"), [("depth", False), ("subscribe", False), ("purge", True)])
def test_it_is_the_brokers_that_do_not_answer_if_they_do_not(
    command: str, comes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fault = ConnectionFailed("there:9092", "there was no answer in 1 s")
    frozen = attended(Cluster().send, insists=False, settles=False, fault=fault)
    with pytest.raises(ConnectionFailed, match="there:9092: there was no answer in 1 s") as emitted:
        frozen.check(SHARDS, command, 30)
    assert ("may still be carried out" in str(emitted.value)) is comes
    waiting = attended(Cluster().send, insists=True, settles=False, fault=fault)
    assert waiting.check(SHARDS, "depth", 30) == pytest.approx(29.98)
    assert "no connection to Kafka at there:9092" in caplog.text
    assert "Start a worker" not in caplog.text

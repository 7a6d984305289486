"""What is public, and what it may import."""

import pickle
import subprocess
import sys

import pytest

import lapse_client
import lapse_client.aio
import lapse_client.error
from lapse_client.kafka.connection import Connection, entities


@pytest.mark.feature("X3")
def test_the_public_surface_is_this() -> None:
    assert sorted(lapse_client.__all__) == lapse_client.__all__
    assert set(lapse_client.__all__) == {
        *(
            "Admin",
            "AlreadySettled",
            "AnswerTimeout",
            "AvroSerde",
            "Bookmark",
            "BookmarkRange",
            "Closed",
            "CommandFailed",
            "Connection",
        ),
        *(
            "ConnectionFailed",
            "DeadLetter",
            "DeadLetterReader",
            "Defined",
            "Delivery",
            "EntityDeleted",
            "Event",
            "EventReader",
            "History",
            "InvalidPayload",
            "InvalidPublication",
            "JsonSerde",
        ),
        *(
            "LapseError",
            "Moment",
            "NoRecord",
            "NoReply",
            "OtherEventLoop",
            "OtherProcess",
            "PublishFailed",
            "Publisher",
            "Queue",
            "QueueSubscriber",
            "RedriveUnfinished",
            "Replayed",
            "Reply",
            "Retry",
            "Serde",
            "SettlementResult",
            "SowClient",
        ),
        *(
            "SowRecord",
            "SowSubscription",
            "Task",
            "TaskQueue",
            "Transaction",
            "TransactionFailed",
            "UnknownEntity",
            "UnresolvedSchema",
            "history",
            "replay",
        ),
    }
    assert all(getattr(lapse_client, name).__doc__ for name in lapse_client.__all__)


@pytest.mark.feature("X3")
def test_the_asynchronous_names_are_synchronous_names() -> None:
    assert lapse_client.aio.__all__ == lapse_client.__all__
    for name in lapse_client.aio.__all__:
        twin, one = getattr(lapse_client, name), getattr(lapse_client.aio, name)
        public = {attribute for attribute in vars(one) if not attribute.startswith("_")}
        assert public <= {attribute for attribute in dir(twin) if not attribute.startswith("_")} | {"start"}, name


@pytest.mark.feature("X3")
def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = lapse_client.error.__doc__
    for name, found in vars(lapse_client.error).items():
        if isinstance(found, type) and issubclass(found, lapse_client.LapseError):
            assert name in drawn
            assert name == "LapseError" or name in lapse_client.__all__


@pytest.mark.slow
@pytest.mark.feature("X3")
def test_the_client_needs_neither_faust_nor_spark() -> None:
    code = (
        "import sys, lapse_client, lapse_client.aio\n"
        "print([name for name in ('faust', 'mode', 'aiokafka', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.feature("X5")
def test_no_secret_is_in_a_repr() -> None:
    shown = repr(Connection("broker:9092", {"sasl.password": "geheim"}, user="me", secret="geheim" * 3))
    assert "geheim" not in shown
    assert "broker:9092" in shown


@pytest.mark.feature("X3")
def test_another_process_gets_a_connection_that_was_used() -> None:
    """As an argument of a process that is spawned. What it has opened stays behind."""
    connection = Connection("127.0.0.1:1", {"sasl.username": "app"}, user="me", secret="k" * 16, insists=False)
    assert connection.clock is connection.clock
    with pytest.raises(lapse_client.ConnectionFailed):
        connection.await_broker(0.1)
    again = pickle.loads(pickle.dumps(connection))
    assert again == connection
    assert again.clock is not connection.clock


@pytest.mark.feature("X4", "X5", "X7")
def test_a_user_needs_a_secret_from_the_environment_or_a_file(tmp_path, monkeypatch) -> None:
    for name in ("LAPSE_USER", "LAPSE_SECRET", "LAPSE_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert Connection().signed("lapse.q.commands", 0, 1, b"{}") == []
    monkeypatch.setenv("LAPSE_USER", "alice")
    with pytest.raises(lapse_client.LapseError, match="secret of user alice holds no key"):
        Connection.from_environment()
    monkeypatch.setenv("LAPSE_SECRET", "tooshort")
    with pytest.raises(lapse_client.LapseError, match="less than 16 bytes") as caught:
        Connection.from_environment()
    assert "tooshort" not in str(caught.value)
    file = tmp_path / "alice.key"
    monkeypatch.setenv("LAPSE_SECRET_FILE", str(file))
    with pytest.raises(lapse_client.LapseError, match="alice.key: cannot be read"):
        Connection.from_environment()
    file.write_text("k" * 32 + "\n")
    found = Connection.from_environment()
    assert found.deliveries("q") == "lapse.q.deliveries.alice"
    assert dict(found.signed("lapse.q.commands", 0, 1, b"{}"))["lapse-user"] == b"alice"
    with pytest.raises(lapse_client.LapseError, match="cannot be a user"):
        Connection(user="a/b", secret="k" * 32)


@pytest.mark.feature("X5", "X7")
def test_options_are_read_from_a_file(tmp_path, monkeypatch) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# ours\nsecurity.protocol = SASL_SSL\nsasl.password=a=b\nbootstrap.servers=x:1\n")
    monkeypatch.setenv("LAPSE_KAFKA_CONFIG", str(file))
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    found = Connection.from_environment()
    assert found.bootstrap_servers == "x:1"
    assert found.options == {"security.protocol": "SASL_SSL", "sasl.password": "a=b"}
    file.write_text("nonsense\n")
    with pytest.raises(lapse_client.LapseError, match="line 1"):
        Connection.from_environment()


@pytest.mark.feature("X3")
def test_entities_are_known_by_their_topics() -> None:
    topics = dict.fromkeys(["lapse.q.commands", "lapse.s.commands", "lapse.sow.s", "lapse..commands", "x.commands"], 1)
    assert entities(topics, sow=False) == ["q"]
    assert entities(topics, sow=True) == ["s"]

"""Why no broker answers, told in words that lead somewhere; librdkafka itself tells them here, of real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse.silence import Silence
from lapse_client.error import ConnectionFailed
from lapse_client.kafka import metadata
from lapse_client.kafka.connection import Connection


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """A program that is no broker, and its address: says something and closes the connection; None = says nothing."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    one, _ = server.accept()
                except OSError:
                    return
                held.append(one)
                if answer is None:
                    continue
                with suppress(OSError):  # the client may have hung up first
                    one.recv(1_000)
                    one.sendall(answer)
                one.close()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for one in held:
                one.close()


def error_of(servers: str) -> str:
    with pytest.raises(ConnectionFailed) as failed:
        Connection(servers).partitions()
    assert not failed.value.refused
    return str(failed.value)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "FIRST_ANSWER_S", 0.5)


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (None, "there was no answer in 0.5 s"),
        (b"", "connections are closed before there is an answer, as by a listener that wants TLS or SASL"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "what answers there is no Kafka"),
    ],
    ids=["says nothing", "closes", "speaks HTTP"],
)
def test_a_program_that_is_no_broker_is_distinguished(answer: bytes | None, cause: str) -> None:
    with listening(answer) as servers:
        text = error_of(servers)
    assert text.startswith(f"no connection to Kafka at {servers}: {cause}"), text
    assert "Check that the broker runs" in text


@pytest.mark.feature("X7")
def test_nobody_listens_and_no_such_host() -> None:
    refused = "no connection to Kafka at 127.0.0.1:1: Connect to 127.0.0.1:1 failed: Connection refused. Check that"
    assert error_of("127.0.0.1:1").startswith(refused)
    unknown = "no connection to Kafka at no-such-host.invalid:9092: Failed to resolve 'no-such-host.invalid:9092': "
    assert error_of("no-such-host.invalid:9092").startswith(unknown)
    assert "in state" not in error_of("no-such-host.invalid:9092")


@pytest.mark.feature("X7")
def test_an_error_that_came_several_times_is_reported_without_librdkafkas_count() -> None:
    again = "b:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT, %s)"
    error = KafkaError(KafkaError._TRANSPORT, again % "1 identical error(s) suppressed")
    silence = Silence()
    silence.settings["error_cb"](error)
    assert silence.why(1) == "Connect to 127.0.0.1:1 failed: Connection refused"


class Brokers:
    """An administrator's connection, with a clock of its own: an answer takes as long as it is waited for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.away = True

    def monotonic(self) -> float:
        return self.now_s

    def poll(self, _timeout: float) -> None:
        """Nothing was noted."""

    def list_topics(self, timeout: float) -> object:
        self.now_s += timeout
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return object()


@pytest.mark.feature("X7")
def test_the_first_answer_is_waited_for_shortly_and_later_ones_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of _hurry
    brokers = Brokers()
    monkeypatch.setattr(metadata, "time", brokers)
    source = metadata.Metadata("x", {}, lambda _settings: brokers, None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ConnectionFailed):
        source.ask()
    assert brokers.now_s < 5, "so a wrong address is told within 5 s"
    brokers.away = False
    source.ask()
    brokers.now_s, brokers.away = 0.0, True
    with pytest.raises(ConnectionFailed):
        source.ask()
    assert brokers.now_s > 10, "brokers that were there may be starting again"


def test_a_cause_outlives_what_says_nothing() -> None:
    silence = Silence()
    silence.log(6, "%s [%s] %s", "FAIL", "rdkafka", "Disconnected (in state APIVERSION_QUERY)")
    silence.log(6, "%s [%s] %s", "REQTMOUT", "rdkafka", "Timed out 1 in-flight")
    assert "wants TLS or SASL" in silence.why(3)
    assert not silence.refusal


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    "servers", ["127.0.0.1:1", "localhost:1,127.0.0.1:2", "no-such-host.invalid:9092", "not..for-dns:9092"]
)
def test_a_person_does_not_wait_for_long_where_nobody_listens(servers: str) -> None:
    silence = Silence()
    assert not silence.is_nobody_there(servers), "before librdkafka has told of a cause"
    refused = "b:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)"
    silence.settings["error_cb"](KafkaError(KafkaError._TRANSPORT, refused))
    assert silence.is_nobody_there(servers)
    with listening(None) as other:
        assert not silence.is_nobody_there(f"{servers},{other}")
        assert not silence.is_nobody_there(f"PLAINTEXT://{other}")
    assert not silence.is_nobody_there(f"{servers},::1:9092"), "IPv6 without brackets is librdkafka's to read"


@pytest.mark.feature("X7")
def test_a_name_with_a_slow_and_a_refusing_address_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    silence = Silence()
    silence.settings["error_cb"](KafkaError(KafkaError._TRANSPORT, "Connect failed: Connection refused"))
    with socket.socket() as full, ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with suppress(TimeoutError):
            while True:  # until its queue is full, so that it answers no more
                held.enter_context(socket.create_connection(full.getsockname(), 0.1))
        slow, refusing = (socket.getaddrinfo(*one)[0] for one in (full.getsockname(), ("127.0.0.1", 1)))
        for found, nobody in (([slow, refusing], False), ([refusing, refusing], True)):
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found: found)
            assert silence.is_nobody_there("both:9092") is nobody


@pytest.mark.feature("X7")
def test_a_command_ends_at_its_first_look_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program waits on: its broker may be starting."""
    looks: list[float] = []

    def opened(settings: dict[str, Any]) -> Brokers:
        settings["error_cb"](
            KafkaError(KafkaError._TRANSPORT, "Connect to ipv4#127.0.0.1:1 failed: Connection refused")
        )
        brokers = Brokers()
        monkeypatch.setattr(metadata, "time", brokers)
        monkeypatch.setattr(
            brokers, "list_topics", lambda timeout: looks.append(timeout) or Brokers.list_topics(brokers, timeout)
        )
        return brokers

    for timeout_s, times in (60.0, 1), (None, 2):
        looks.clear()
        source = metadata.Metadata("127.0.0.1:1", {}, opened, None)  # type: ignore[arg-type]
        monkeypatch.setattr(metadata, "FIRST_ANSWER_S", 3.0)
        with pytest.raises(ConnectionFailed, match="Connection refused"):
            source.ask(timeout_s)
        assert len(looks) == times
        source._answered = True  # then brokers that are not listed are known, and may be slow
        looks.clear()
        with pytest.raises(ConnectionFailed, match="Connection refused"):
            source.ask(timeout_s)
        assert len(looks) > 2

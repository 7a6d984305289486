"""From start to close: each phase, and every pair of threads that may meet there."""

import contextlib
import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapse_client.error import Closed, ConnectionFailed, LapseError
from lapse_client.session.channel import Channel
from lapse_client.session.channel_thread import ChannelThread
from lapse_client.session.lifecycle import Lifecycle, Phase
from lapse_client.session.listener import Listener
from lapse_client.session.session import Session
from lapse_client.session.shard import Shard
from unit.client.test_end_of_producer import memory

pytestmark = pytest.mark.feature("X3")


class Thing:
    """Something with a lifecycle, that counts how often it is connected."""

    def __init__(self, error: LapseError | None = None) -> None:
        self.lifecycle = Lifecycle("the thing")
        self.error = error
        self.connected = 0
        self.goodbyes = 0

    def connect(self) -> None:
        self.connected += 1
        time.sleep(0)
        if self.error is not None:
            raise self.error

    def leave(self) -> None:
        assert not self.lifecycle.is_open, "what is sent now could follow the goodbye"
        self.connected -= 1
        self.goodbyes += 1

    def start(self) -> None:
        self.lifecycle.start(self.connect, self.leave)

    def close(self) -> None:
        self.lifecycle.close(self.leave)


def test_it_is_started_once_and_closed_once() -> None:
    thing = Thing()
    assert thing.lifecycle.phase is Phase.NEW
    with pytest.raises(Closed, match="the thing is closed"):
        thing.lifecycle.check()
    thing.start()
    thing.start()
    assert (thing.lifecycle.phase, thing.connected) == (Phase.RUNNING, 1)
    thing.lifecycle.stop()
    assert (thing.lifecycle.phase, thing.lifecycle.is_open) == (Phase.STOPPING, True)
    thing.close()
    thing.close()
    assert (thing.lifecycle.phase, thing.connected, thing.goodbyes) == (Phase.CLOSED, 0, 1)
    with pytest.raises(Closed):
        thing.start()


def test_a_start_that_failed_may_be_repeated() -> None:
    thing = Thing(LapseError("no worker"))
    with pytest.raises(LapseError, match="no worker"):
        thing.start()
    assert (thing.lifecycle.phase, thing.lifecycle.error, thing.connected) == (Phase.NEW, None, 0)
    thing.error = None
    thing.start()
    assert thing.lifecycle.phase is Phase.RUNNING


@pytest.mark.parametrize("end", [Lifecycle.stop, lambda lifecycle: lifecycle.close(lambda: None)])
def test_what_is_closed_before_its_start_never_starts(end) -> None:
    thing = Thing()
    end(thing.lifecycle)
    with pytest.raises(Closed):
        thing.start()
    assert (thing.lifecycle.phase, thing.connected, thing.goodbyes) == (Phase.CLOSED, 0, 0)


@pytest.mark.parametrize("end", [Lifecycle.stop, lambda lifecycle: lifecycle.close(lambda: None)])
def test_a_start_that_waits_ends_with_the_close(end) -> None:
    thing = Thing()

    def connect() -> None:
        thing.connect()
        threading.Timer(0.01, end, [thing.lifecycle]).start()
        thing.lifecycle.await_ready(lambda: False, 30)

    with pytest.raises(Closed):
        thing.lifecycle.start(connect, thing.leave)
    assert (thing.lifecycle.phase, thing.connected, thing.goodbyes) == (Phase.CLOSED, 0, 1)


def test_the_first_failure_counts_and_is_what_a_start_raises() -> None:
    thing = Thing()

    def connect() -> None:
        thing.connect()
        assert thing.lifecycle.fail(LapseError("first"))
        assert not thing.lifecycle.fail(LapseError("second"))
        thing.lifecycle.await_ready(lambda: True, 30)

    with pytest.raises(LapseError, match="first"):
        thing.lifecycle.start(connect, thing.leave)
    thing.start()
    assert thing.lifecycle.fail(LapseError("later"))
    assert thing.lifecycle.phase is Phase.FAILED
    with pytest.raises(LapseError, match="later"):
        thing.start()
    thing.close()
    assert (thing.lifecycle.phase, thing.connected, thing.goodbyes) == (Phase.CLOSED, 0, 2)
    assert not thing.lifecycle.fail(LapseError("after the end"))


def test_a_start_that_gets_ready_goes_on_at_once() -> None:
    lifecycle, ready = Lifecycle("the thing"), threading.Event()

    def connect() -> None:
        def confirm() -> None:
            ready.set()
            lifecycle.changed()

        threading.Timer(0.01, confirm).start()
        assert lifecycle.await_ready(ready.is_set, 30)
        assert not lifecycle.await_ready(lambda: False, 0.01)

    lifecycle.start(connect, lambda: None)
    assert lifecycle.phase is Phase.RUNNING


@given(st.integers())
@settings(max_examples=50, deadline=None)
def test_whatever_meets_nothing_stays_connected(seed: int) -> None:
    """Starts and closes in threads of their own: whoever wins, nothing is left, and one goodbye is said at most."""
    thing, moments = Thing(), random.Random(seed)

    def run(method) -> None:
        time.sleep(moments.random() / 2_000)
        with contextlib.suppress(Closed):
            method()

    threads = [
        threading.Thread(target=run, args=(one,)) for one in (thing.start, thing.close, thing.close, thing.start)
    ]
    moments.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (thing.lifecycle.phase, thing.connected) == (Phase.CLOSED, 0)
    assert thing.goodbyes <= 1


def test_only_the_channels_thread_changes_what_it_reads() -> None:
    made: list[ChannelThread] = []
    own = threading.Thread(target=lambda: made.append(ChannelThread(None, [Shard(0, "q", 0)], {}, None)))
    own.start()
    own.join()
    with pytest.raises(RuntimeError, match="only the channel's own thread"):
        made[0].join("q", [])
    with pytest.raises(RuntimeError, match="only the channel's own thread"):
        made[0].leave("q")


@pytest.mark.feature("X7")
@pytest.mark.parametrize(
    ("error", "timeout_s", "at_most_s"),
    [
        (ConnectionFailed("127.0.0.1:9092", "it stands still"), 30.0, 1.0),
        (KeyboardInterrupt(), 3.0, 3.0),
        (KeyboardInterrupt(), 0.0, 1.0),
        (Closed("it"), 600.0, 15.0),
    ],
)
def test_a_failed_start_waits_no_longer_for_its_end_than_for_its_beginning(
    error: BaseException, timeout_s: float, at_most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that stands still never takes the `unsubscribe` of a start."""
    waits_s: list[float] = []

    def failing(*_: object) -> None:
        raise error

    monkeypatch.setattr(Channel, "start", failing)
    monkeypatch.setattr(Channel, "close", lambda _, flush_s: waits_s.append(flush_s))
    session: Session[None] = Session(memory(), [("orders", 1)], Lifecycle("the thing"), "me")
    with pytest.raises(type(error)):
        session.lifecycle.start(lambda: session.open(Listener(), timeout_s), session.undo)
    assert waits_s == [at_most_s]

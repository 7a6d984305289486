"""What an application may do in `on_refused`: raise, and close its subscriber (Q8)."""

import contextlib
import re
import threading
from collections.abc import Callable

import pytest

from lapse.testing import Lapse
from lapse_client import LapseError, QueueSubscriber
from lapse_client.subscriber.settlement import SettlementResult

Report = Callable[[SettlementResult], None]


@pytest.mark.feature("Q8", "X3")
def test_an_error_in_it_is_logged_and_the_subscription_goes_on(lapse: Lapse, caplog: pytest.LogCaptureFixture) -> None:
    lapse.queue("orders", lease_period="10s", leasing="strict")
    results: list[SettlementResult] = []

    def fails(result: SettlementResult) -> None:
        results.append(result)
        raise LookupError("the application's own")

    with lapse.publisher() as publisher, lapse.subscriber("orders", 1, on_refused=fails) as subscriber:
        publisher.publish("orders", b"1")
        first = subscriber.receive(5)
        assert first is not None
        lapse.clock.advance(10)
        first.cancel()
        lapse.settle()
        again = subscriber.receive(5)
        assert again is not None
        assert again.delivery_count == 2
        again.acknowledge()
        publisher.publish("orders", b"2")
        assert subscriber.receive(5) is not None
    assert [one.result for one in results] == ["stale"]
    assert "on_refused failed for orders:0:0: stale" in caplog.text


@pytest.mark.feature("Q8", "X3")
@pytest.mark.parametrize("how", ["acknowledge", "cancel", "transaction"])
def test_it_may_close_its_subscriber(lapse: Lapse, how: str) -> None:
    """Also where it is called by the thread that settles, as for a message whose queue is deleted."""
    lapse.queue("a")
    lapse.queue("b")
    results: list[SettlementResult] = []

    def closes(result: SettlementResult) -> None:
        results.append(result)
        subscriber.close()

    subscriber = QueueSubscriber(re.compile("[ab]"), 2, connection=lapse.connection, on_refused=closes)
    with lapse.publisher() as publisher, lapse.admin() as admin:
        subscriber.start()
        publisher.publish("a", b"1")
        delivery = subscriber.receive(5)
        assert delivery is not None
        admin.delete_queue("a", force=True)
        for _ in range(60):
            lapse.clock.advance(1)
        assert delivery.shard.gone

        def in_transaction() -> None:
            with contextlib.suppress(LapseError), delivery.transaction():
                pass

        settles = {
            "acknowledge": lambda: (delivery.acknowledge(), subscriber.flush()),
            "cancel": delivery.cancel,
            "transaction": in_transaction,
        }[how]
        settling = threading.Thread(target=settles, daemon=True)
        settling.start()
        settling.join(20)
        assert not settling.is_alive(), "it hangs"
    assert [one.result for one in results] == ["already_settled"]

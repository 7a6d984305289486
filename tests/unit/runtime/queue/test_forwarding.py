"""What forwarding passes on to the target, and what it leaves out (Q21, C38)."""

import numpy as np
import pytest
from benchmarks.instruments.plain_record import PlainRecord

from lapse.core.queue.step import Delivery, Messages
from lapse.protocol import header
from lapse.runtime.queue.forwarding import Forwarding


@pytest.mark.feature("C38", "S10")
def test_a_forwarded_record_is_published_anew_and_has_no_origin() -> None:
    """A SOW topic over the target would take it for the old update, and keep it from where it came from."""
    headers: list[tuple[str, bytes | None]] = [
        *((name, b"upstream") for name in sorted(header.ORIGIN_NAMES)), ("trace", b"t")
    ]  # fmt: skip
    record = PlainRecord(7, 1_000, b"k", b"{}", headers)
    messages = Messages("prices", 0, np.array([7], np.int64), None, np.zeros(1, np.uint32), None)
    outputs = Forwarding("q", "target", 1).outputs(Delivery("forwarder", messages, 0), [record])
    assert [name for name, _ in outputs[7].headers] == ["trace", header.TTL_MS, header.MESSAGE_ID]

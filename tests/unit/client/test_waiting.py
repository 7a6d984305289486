"""Whom a history asks of a message that nobody has told of."""

import pytest

from lapse_client.queue.waiting import by_default_queue


@pytest.mark.feature("C48", "D6")
def test_the_queue_of_the_topics_name_is_asked_first_however_many_there_are() -> None:
    queues = [f"queue-{number:02}" for number in range(40)]
    assert by_default_queue("queue-33", queues)[:2] == ["queue-33", "queue-00"]
    assert by_default_queue("orders", queues) == queues

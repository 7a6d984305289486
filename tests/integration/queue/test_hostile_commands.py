"""Commands that are wrong in any number of places stop nobody, and fill no log (X7)."""

import json
import time

import pytest

from lapse.protocol import topic
from support.kafka.log import until, write
from support.processes.deployment import Deploy


@pytest.mark.feature("X7", "X2")
def test_hundreds_of_thousands_of_unknown_fields_stop_no_entity(deploy: Deploy) -> None:
    here = deploy({"orders": {}, "others": {}}).apply()
    worker = here.worker().wait_for_shards(2)
    fields = {f"f{at}": 1 for at in range(120_000)}
    fields["id"] = "big"  # type: ignore[assignment]
    commands = topic.commands(here.name("orders"))
    answers = here.tail(topic.deliveries(here.name("orders")), from_end=True)
    body = json.dumps(fields).encode()
    compressed = {"compression.type": "lz4", "message.max.bytes": 10_000_000}
    write(here.servers, commands, [body], **compressed)
    began = time.monotonic()
    assert here.depth("others")["depth"] == 0
    took_s = time.monotonic() - began

    def refusal() -> dict[str, object] | None:
        values = [message.value() or b"" for message in answers.drain()]
        return next((json.loads(value) for value in values if b'"big"' in value), None)

    refused: list[dict[str, object]] = []
    until(lambda: (one := refusal()) is not None and not refused.append(one), "the answer", 20)
    assert "field f0: unknown" in str(refused[0]["error"])
    assert "more faults" in str(refused[0]["error"])
    assert took_s < 10, "before, the whole worker stood still for the time that 120,000 comparisons take"
    write(here.servers, commands, [b'{"command": "depth", "nonsense": %d}' % at for at in range(500)])
    until(lambda: "only counted for a minute" in worker.text, "the refusals are counted")
    assert here.depth("orders")["depth"] == 0
    lines = [line for line in worker.text.splitlines() if "refused" in line]
    assert len(lines) == 10
    assert max(map(len, lines)) < 1_500


@pytest.mark.feature("X7", "C60", "Q8")
def test_a_command_that_names_the_same_messages_over_and_over_is_refused_and_stops_nobody(deploy: Deploy) -> None:
    """Each range is looked up by itself: 20,000 of them over a long queue took the worker minutes."""
    here = deploy({"orders": {}}).apply()
    here.worker().wait_for_shards(1)
    name = here.name("orders")
    here.write("orders", *[b"x"] * 5_000)
    until(lambda: here.depth("orders")["depth"] == 5_000, "all arrived")
    answers = here.tail(topic.deliveries(name), from_end=True)
    commands = [
        json.dumps({"command": verb, "id": verb, "subscription": "s", "bookmarks": [f"{name}:0:0-4999"] * 20_000})
        for verb in ("acknowledge", "renew")
    ]
    compressed = {"compression.type": "lz4", "message.max.bytes": 10_000_000}
    write(here.servers, topic.commands(name), [one.encode() for one in commands], **compressed)

    def told() -> dict[str, str]:
        found = [json.loads(one.value() or b"") for one in answers.drain() if b'"code"' in (one.value() or b"")]
        return {one["id"]: one["code"] for one in found if one["id"] in ("acknowledge", "renew")}

    until(lambda: len(told()) == 2, "both are answered", 60)
    assert set(told().values()) == {"too_costly"}
    assert here.depth("orders")["depth"] == 5_000

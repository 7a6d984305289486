"""The instant of a letter is that of its decision: what died while no worker ran was decided when one did (C53)."""

import time

import pytest

from support.kafka.log import texts
from support.processes.deployment import Deploy, broker_now_ms

TTL = [("lapse-ttl-ms", b"500")]
PAST = [("lapse-expires-at-ms", b"1000")]


@pytest.mark.feature("C53", "D2", "L14")
@pytest.mark.parametrize("restarted", [False, True])
def test_nothing_was_decided_before_the_worker_ran(deploy: Deploy, restarted: bool) -> None:
    """Two messages of a queue and two records of a SOW topic die before the worker starts; one dies as it runs."""
    here = deploy({"orders": {"expiration": "enabled"}})
    letters = ["time_limit", "invalid_lifetime"]
    prices = {"prices": {"expiration": "enabled", "dead_letter_reasons": letters}}
    here.configure({"orders": {"expiration": "enabled"}}, prices)
    here.apply()
    if restarted:
        worker = here.worker().wait_for_shards(2)
        worker.stop()
    deadlines: dict[bytes, int] = {}
    for stem in ("orders", "prices"):
        for name, headers in (("short", TTL), ("past", PAST)):
            (written,) = here.write(stem, name, key=name.encode(), headers=headers)
            deadlines[f"{stem} {name}".encode()] = 1000 if name == "past" else written.timestamp_ms + 500
    time.sleep(1)
    started_ms = broker_now_ms()
    here.worker().wait_for_shards(2)
    for stem in ("orders", "prices"):
        found = here.letters(stem, 2)
        for letter in found:
            facts = texts(letter)
            assert started_ms <= int(facts["lapse-expired-at-ms"]) <= broker_now_ms()
            assert int(facts["lapse-expires-at-ms"]) == deadlines[f"{stem} ".encode() + (letter.value() or b"")]
        emitted = [one for one in here.events(stem) if one.reasons]
        assert emitted
        assert all(one.at_ms >= started_ms for one in emitted)

"""The table of retries in `lapse.toml`: what it means, and its mistakes with place and remedy."""

import pytest

from lapse.config import ConfigError
from lapse.config.document import loads
from lapse.core.queue.delivery.retry import NO_RETRY, Cause, RetryRule


@pytest.mark.feature("Q24", "C69")
@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("", NO_RETRY),
        ('retry = { delay = "10s" }', RetryRule(10_000)),
        (
            'retry = { delay = "1s", factor = 2, max_delay = "5m", jitter = 0.2, on = ["cancel", "lost"] }',
            RetryRule(1_000, 2.0, 300_000, 0.2, frozenset({Cause.CANCEL, Cause.LOST})),
        ),
        ('[queue.q.retry]\ndelay = "1s"\nfactor = 1.5', RetryRule(1_000, 1.5)),
    ],
)
def test_what_is_said_is_the_rule(said: str, rule: RetryRule) -> None:
    assert loads(f"[queue.q]\n{said}\n").queue["q"].settings("q", 0).retry == rule


@pytest.mark.feature("Q24", "X7")
@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("{}", "retry.delay: has to be given"),
        ('"1s"', "retry: expected a table, not '1s'"),
        ('{ dely = "1s" }', "retry.dely: unknown key; did you mean 'delay'?"),
        ('{ delay = "0s" }', "retry.delay: '0s': has to be longer than 0"),
        ("{ delay = 2 }", 'retry.delay: 2 has no unit; write "2ms" or "2s"'),
        ('{ delay = "1s", factor = 0.5 }', "retry.factor: expected 1.0 or more, not 0.5"),
        ('{ delay = "1s", factor = 1001 }', "retry.factor: expected 1000.0 or less, not 1001"),
        ('{ delay = "1s", factor = "two" }', "retry.factor: expected a number, not 'two'"),
        ('{ delay = "1s", factor = nan }', "retry.factor: expected a finite number, not nan"),
        ('{ delay = "1s", jitter = 2 }', "retry.jitter: expected 1.0 or less, not 2"),
        ('{ delay = "1s", jitter = -0.1 }', "retry.jitter: expected 0.0 or more, not -0.1"),
        ('{ delay = "2s", max_delay = "1s" }', "retry.max_delay: 1s is shorter than delay, 2s"),
        ('{ delay = "2d" }', "retry.max_delay: 1d is shorter than delay, 2d"),
        ('{ delay = "1s", on = [] }', "retry.on: names nothing after which messages wait; leave retry out"),
        ('{ delay = "1s", on = ["crash"] }', "retry.on.0: expected 'cancel', 'lease' or 'lost', not 'crash'"),
        ('{ delay = "1s", on = ["lost", "lost"] }', "retry.on: lost is named twice"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_key(said: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(f"# first line\n[queue.q]\nretry = {said}\n")
    assert f"lapse.toml:3: queue.q.{message}" in str(caught.value)

"""Deletes the topics of tests that have ended from the broker that tests share.

Whoever lists all topics would be told of them, too. Each start of a worker and each command does so. A list of 500
topics takes the broker 20 ms of CPU, and the end of one topic 8 ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from confluent_kafka.admin import AdminClient

_NAMES: defaultdict[str, set[str]] = defaultdict(set)
_TOKENS: defaultdict[str, set[str]] = defaultdict(set)


def leave(servers: str, names: Iterable[str] = (), token: str = "") -> None:
    """Note topics of a broker that no test needs any more, by name, or by a token that no other name has."""
    _NAMES[servers].update(names)
    if token:
        _TOKENS[servers].add(token)


def delete(servers: str) -> None:
    """Delete the noted topics of a broker that are still there."""
    names, tokens = _NAMES.pop(servers, set()), _TOKENS.pop(servers, set())
    if not names and not tokens:
        return
    admin = AdminClient({"bootstrap.servers": servers})
    left = [one for one in admin.list_topics(timeout=15).topics if one in names or any(own in one for own in tokens)]
    for done in admin.delete_topics(left).values() if left else ():
        done.exception(30)  # a test may have deleted it at this moment

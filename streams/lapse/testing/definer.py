"""Carries out what clients ask about queues and SOW topics at run time, as far as a test in memory needs it (Q23)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson

from lapse.config import ConfigError
from lapse.core.error_code import ErrorCode
from lapse.protocol import answer as answers
from lapse.protocol import command as commands
from lapse.protocol import header
from lapse.protocol import topic as names
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command, CommandError
from lapse.testing.cluster import Cluster

_KINDS: Final = {"create_queue": "queue", "create_sow": "sow"}

Create = Callable[[str, str, dict[str, Any]], tuple[int, bool]]


class MemoryDefiner:
    """Answers the commands about definitions of one deployment.

    Args:
        deployment: its `app_id`.
        cluster: where it is.
        create: creates an entity of a kind, with a name and settings; returns its shards, and whether it is new.
    """

    def __init__(self, deployment: str, cluster: Cluster, create: Create) -> None:
        self._cluster = cluster
        self._create = create
        definer = names.definer(deployment)
        self._commands, self._answers = names.commands(definer), names.deliveries(definer)
        self._next = 0
        for topic in (self._commands, self._answers):
            cluster.create(topic, 1)

    def work(self) -> None:
        """Carry out what came; under the cluster's lock."""
        records = self._cluster.log(self._commands, 0)
        while self._next < len(records):
            record = records[self._next]
            self._next += 1
            try:
                command, encoding = commands.decode(record.value)
            except CommandError:  # the client writes no such thing
                continue
            told = [(header.KIND, b"answer"), (header.COMMAND_ID, command.id.encode()), (header.EPOCH, b"1")]
            value = answers.encode(self._answer(command), encoding)
            self._cluster.append(self._answers, 0, None, value, told)

    def _answer(self, command: Command) -> Answer:
        try:
            kind = _KINDS[command.command]
            shards, is_new = self._create(kind, command.entity, orjson.loads(command.settings or "{}"))
        except KeyError:
            text = f"{command.command}: not in lapse.testing; test what needs it with a broker (`lapse kafka start`)"
            return self._refused(command, ErrorCode.UNKNOWN_COMMAND, text)
        except FileExistsError as error:
            return self._refused(command, ErrorCode.EXISTS, str(error))
        except ConfigError as error:
            return self._refused(command, ErrorCode.INVALID_ARGUMENT, str(error))
        counts = {"version": 1, "shards": shards, "changed": int(is_new)}
        return Answer(
            id=command.id, command=command.command, status="ok", partition=0, at_ms=self._cluster.now_ms, counts=counts
        )

    def _refused(self, command: Command, code: ErrorCode, text: str) -> Answer:
        return Answer(
            id=command.id,
            command=command.command,
            status="error",
            error=text,
            partition=0,
            at_ms=self._cluster.now_ms,
            code=code,
        )

"""Carries out clients' requests for queues and SOW topics at run time, by the workers' own rules (Q23, C64, C65)."""

from __future__ import annotations

from typing import Protocol

from lapse.protocol import answer as answers
from lapse.protocol import command as commands
from lapse.protocol import header
from lapse.protocol import topic as names
from lapse.protocol.answer import Answer
from lapse.protocol.command import Command, CommandError
from lapse.runtime.topics.definition_draft import Refused, Request
from lapse.runtime.topics.definition_request import read_request
from lapse.testing.cluster import Cluster


class Defining(Protocol):
    """The part of a deployment in memory that defines entities."""

    def define(self, request: Request) -> tuple[int, int, bool]:
        """Define an entity; return its version, its number of shards, and whether something changed.

        Raises:
            Refused: the definition is not allowed.
        """


class MemoryDefiner:
    """Answers the commands about definitions of one deployment.

    Args:
        deployment: its `app_id`.
        cluster: its cluster.
        defining: defines its entities.
    """

    def __init__(self, deployment: str, cluster: Cluster, defining: Defining) -> None:
        self._cluster = cluster
        self._defining = defining
        definer = names.definer(deployment)
        self._commands, self._answers = names.commands(definer), names.deliveries(definer)
        self._next = 0
        for topic in (self._commands, self._answers):
            cluster.create(topic, 1)

    def work(self) -> None:
        """Carry out the commands that have arrived; call it under the cluster's lock."""
        records = self._cluster.log(self._commands, 0)
        while self._next < len(records):
            record = records[self._next]
            self._next += 1
            try:
                command, encoding = commands.decode(record.value)
            except CommandError:  # the client does not write such records
                continue
            headers = [(header.KIND, b"answer"), (header.COMMAND_ID, command.id.encode()), (header.EPOCH, b"1")]
            value = answers.encode(self._answer(command), encoding)
            self._cluster.append(self._answers, 0, None, value, headers)

    def _answer(self, command: Command) -> Answer:
        at_ms = self._cluster.now_ms
        try:
            version, shards, changed = self._defining.define(read_request(command, ""))
        except Refused as refused:
            refusal = refused.refusal
            return Answer(
                id=command.id,
                command=command.command,
                status="error",
                error=refusal.text,
                partition=0,
                at_ms=at_ms,
                code=refusal.code,
            )
        counts = {"version": version, "shards": shards, "changed": int(changed)}
        return Answer(id=command.id, command=command.command, status="ok", partition=0, at_ms=at_ms, counts=counts)

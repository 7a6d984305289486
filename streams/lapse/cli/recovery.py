"""The rewind that a changed `recovery_point` causes. `lapse apply` shows it, and carries it out (Q22)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Final

from lapse.cli import cluster
from lapse.config import Config
from lapse.config.definition import DefinitionChange
from lapse_client.error import LapseError
from lapse_client.queue.queue import Queue
from lapse_client.reading.count_text import count_text

_KEY: Final = "recovery_point"
_PATIENCE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """A rewind that a changed recovery point causes.

    Attributes:
        queue: name of the queue.
        to: where the rewind begins, as in `lapse queue rewind`.
        version: version of the definition with the recovery point.
    """

    queue: str
    to: str
    version: int

    @property
    def command_id(self) -> str:
        """The id of the rewind. It makes repeated requests carry out the rewind once."""
        return f"{_KEY}-{self.version}"

    def description(self) -> str:
        """Return a text on what the rewind will do."""
        return f"{self.queue}: another {_KEY}: messages that have left come back, as by `{self._command}`"

    @property
    def _command(self) -> str:
        return f"lapse queue rewind {self.queue} --to {self.to} --id {self.command_id}"

    def carry_out(self, config: Config) -> tuple[int | None, str]:
        """Rewind the queue.

        Returns:
            The number of messages that came back, None if the queue did not answer; and a text for the user.
        """
        try:
            connection = cluster.connection(config.lapse.brokers)
            with Queue(self.queue, connection=connection) as client:
                back = client.rewind(self.to, command_id=self.command_id, timeout_s=_PATIENCE_S)["rewound"]
        except LapseError as error:
            return None, f"{self.queue} is not rewound: {error}. Once a worker serves it: {self._command}"
        return back, f"{self.queue}: {count_text(back, 'message')} came back."


def recoveries(changes: Iterable[DefinitionChange]) -> list[Recovery]:
    """Return the rewinds that changed definitions cause. The recovery point `end` causes none."""
    found: list[Recovery] = []
    for one in changes:
        point = one.after.settings.get(_KEY, "beginning")
        if one.before is not None and one.after.kind == "queue" and _KEY in one.keys and point != "end":
            if isinstance(point, date):  # of TOML, whose text would have a space
                point = point.isoformat()
            to = ",".join(map(str, point)) if isinstance(point, list | tuple) else str(point)
            found.append(Recovery(one.after.name, to, one.after.version))
    return found

"""A worker that dies once, between the journal and a delivery, a forwarded message or an answer, or after a delivery.

A payload that contains `before` kills it between the journal and the delivery, `after` once Kafka has the delivery, and
`half` once Kafka has all deliveries of the step but this one. `onward` kills it once the target of a forwarding queue
has the message, and before the journal says so; `unwritten` before the target has it. `lettered` kills it once the dead
letter is written, and before the journal says that the message has left. With a command's name as an
argument it dies between the journal and the first answer to that command instead. After a second start with the same
data directory it does not die.

    python dying.py lapse.toml <data directory> [<command>]
"""

import asyncio
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lapse.cli.worker import serve
from lapse.config import load
from lapse.protocol import reference
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.producer import BatchProducer
from lapse.runtime.letters.letter_writer import LetterWriter
from lapse.runtime.letters.refusal import Refusal


def holds(output: Output | Packed, word: bytes) -> bool:
    """Return whether an output delivers a payload that contains a word. Deliveries by reference always count."""
    if not output.topic.endswith(".deliveries"):
        return False
    if isinstance(output, Packed):
        return any(word in record for record in output.records)
    return dict(output.headers).get("lapse-kind") == reference.KIND


def answers(output: Output | Packed, command: str) -> bool:
    """Return whether an output is the answer to a command of this name."""
    if isinstance(output, Packed) or dict(output.headers).get("lapse-kind") != b"answer":
        return False
    return command.encode() in (output.value or b"")


def forwards(output: Output | Packed, payload: bytes) -> bool:
    """Return whether an output forwards a payload."""
    return not isinstance(output, Packed) and output.value == payload


def bury(letter: Output | Packed, payload: bytes) -> bool:
    """Return whether a dead letter has a payload."""
    return isinstance(letter, Packed) and any(payload in record for record in letter.records)


def without(output: Output | Packed, word: bytes) -> Output | Packed:
    if isinstance(output, Packed):
        return output._replace(records=[record for record in output.records if word not in record])
    return output


def main() -> None:
    path, data_dir, *commands = sys.argv[1:]
    died = Path(data_dir) / "died"
    send = BatchProducer.send

    def end() -> None:
        died.parent.mkdir(parents=True, exist_ok=True)
        died.touch()
        os._exit(9)

    async def send_or_end(
        self: BatchProducer, outputs: Iterable[Output | Packed], *leases: Any
    ) -> list[asyncio.Future[Any]]:
        outputs = list(outputs)
        if died.exists():
            return await send(self, outputs, *leases)
        if any(answers(output, command) for output in outputs for command in commands):
            end()
        if any(holds(output, b"before") for output in outputs):
            end()
        for word in (b"half", b"after"):
            if any(holds(output, word) for output in outputs):
                kept = [without(output, word) for output in outputs] if word == b"half" else outputs
                await asyncio.gather(*await send(self, kept, *leases))
                end()
        return await send(self, outputs, *leases)

    write = LetterWriter.write

    async def write_and_end(self: LetterWriter, letters: Sequence[Output | Packed]) -> dict[int, Refusal]:
        if not died.exists() and any(forwards(letter, b"unwritten") for letter in letters):
            end()
        refused = await write(self, letters)
        if not died.exists() and any(forwards(letter, b"onward") or bury(letter, b"lettered") for letter in letters):
            end()
        return refused

    BatchProducer.send = send_or_end  # type: ignore[method-assign]
    LetterWriter.write = write_and_end  # type: ignore[method-assign]
    config = load(Path(path))
    own = config.lapse.model_copy(update={"data_dir": data_dir})
    serve(config.model_copy(update={"lapse": own}), "info")


if __name__ == "__main__":
    main()

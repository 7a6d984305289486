"""A broker with a wrong clock: Kafka's own class for the time is changed before the JVM loads it."""

import struct
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from lapse.embedded import EmbeddedKafka, class_archive, jars

_CLASS = "org/apache/kafka/common/utils/SystemTime.class"
_FIRST_METHOD = b"\x00\x02\x00\x01\x00\x00\x00\x04\xb8"
"""Stack, locals and length of a body that calls one method, and the call. `milliseconds` is the first such method."""

_LONG, _NOP, _LDC2_W, _LADD = b"\x05", b"\x00", b"\x14", b"\x61"
_LENGTHS = {1: None, 3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 18: 4}
"""Bytes after the tag of each kind of constant; None = a length follows the tag."""


class SkewedKafka(EmbeddedKafka):
    """An embedded broker whose clock is ahead of this machine's.

    Args:
        ahead_ms: the difference, ms; negative = behind.
    """

    def __init__(self, ahead_ms: int) -> None:
        super().__init__(java_options=class_archive.QUICK)  # no class archive, as it would contain the unchanged class
        self._ahead_ms = ahead_ms

    def step(self, ahead_ms: int) -> None:
        """Set the clock: the broker is started again, with another one."""
        self.stop()
        self._ahead_ms = ahead_ms
        self.start()

    def start(self) -> None:
        """Start the broker with the changed class first on the class path."""
        listed = jars.jar_files

        def changed_first(needed: Sequence[jars.Jar]) -> list[Path]:
            return [changed, *listed(needed)]

        with tempfile.TemporaryDirectory(prefix="lapse-skewed-") as folder:
            changed = Path(folder)
            target = changed / _CLASS
            target.parent.mkdir(parents=True)
            target.write_bytes(skewed(_found(listed(jars.KAFKA)), self._ahead_ms))
            with mock.patch.object(jars, "jar_files", changed_first):
                super().start()


def _found(files: Sequence[Path]) -> bytes:
    for file in files:
        with zipfile.ZipFile(file) as jar:
            if _CLASS in jar.namelist():
                return jar.read(_CLASS)
    raise AssertionError(f"no jar of Kafka has {_CLASS}")


def skewed(compiled: bytes, ahead_ms: int) -> bytes:
    """Return a compiled class whose first method adds `ahead_ms`: insert a constant and its addition."""
    count = int.from_bytes(compiled[8:10], "big")
    at, number = 10, 1
    while number < count:
        length = _LENGTHS[compiled[at]]
        number += 2 if length == 8 else 1
        at += 1 + (2 + int.from_bytes(compiled[at + 1 : at + 3], "big") if length is None else length)
    constants = compiled[10:at] + _LONG + struct.pack(">q", ahead_ms)
    head, rest = compiled[:8] + struct.pack(">H", count + 2), compiled[at:]
    body = rest.index(_FIRST_METHOD)
    attribute = int.from_bytes(rest[body - 4 : body], "big")
    call = rest[body + 8 : body + 11]
    # The method's tables say that its body ends after four bytes, so an instruction must begin there.
    longer = struct.pack(">IHHI", attribute + 5, 4, 1, 9) + call + _NOP + _LDC2_W + struct.pack(">H", count) + _LADD
    return head + constants + rest[: body - 4] + longer + rest[body + 11 :]
